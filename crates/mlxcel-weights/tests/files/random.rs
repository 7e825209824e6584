//! Random bytes and random changes of sound files: no parser panics, and none allocates more than the file
//! could hold.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mlxcel_weights::gguf::parse_gguf;
use mlxcel_weights::index::parse_index;
use mlxcel_weights::safetensors::parse_header;
use mlxcel_weights::{Checkpoint, QuantConfig};
use proptest::prelude::*;

/// Remembers the largest allocation of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system allocator unchanged; the thread-local is a plain cell without
// a destructor, so touching it allocates nothing.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|l| l.set(l.get().max(layout.size())));
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.with(|l| l.set(l.get().max(size)));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Runs a parser and checks the largest single allocation it makes. Parsed values take up to a few times the
/// bytes they come from (a string of a few bytes is 24 bytes in memory).
fn bounded<T>(input: &[u8], parse: impl FnOnce(&[u8]) -> T) -> T {
    LARGEST.with(|l| l.set(0));
    let parsed = parse(input);
    let largest = LARGEST.with(Cell::get);
    assert!(largest <= 8 * input.len() + 4096, "{} bytes made a parser ask for {largest}", input.len());
    parsed
}

/// Parses, and reads every tensor that the parser vouches for.
fn try_everything(bytes: &[u8]) {
    if let Ok(gguf) = bounded(bytes, parse_gguf) {
        gguf.tensors.values().for_each(|t| assert!(t.range.end <= bytes.len()));
    }
    if let Ok(tensors) = bounded(bytes, parse_header) {
        tensors.values().for_each(|t| assert!(t.range.end <= bytes.len()));
    }
    let _ = bounded(bytes, parse_index);
}

/// Opens the bytes as a file and decodes all its tensors.
fn open_everything(bytes: &[u8], name: &str, config: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let Ok(checkpoint) = Checkpoint::open(folder.path()) else { return };
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).unwrap();
        assert_eq!(tensor.to_f32().len(), tensor.elements());
    }
}

/// Overwrites, inserts or removes bytes at places that `position` scales to the length.
#[derive(Clone, Debug)]
enum Change {
    Set(u16, u8),
    Word(u16, u64),
    Insert(u16, Vec<u8>),
    Cut(u16, u16),
}

fn change() -> impl Strategy<Value = Change> {
    let word = prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(0), 0u64..64];
    prop_oneof![
        (any::<u16>(), any::<u8>()).prop_map(|(p, b)| Change::Set(p, b)),
        (any::<u16>(), word).prop_map(|(p, w)| Change::Word(p, w)),
        (any::<u16>(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(p, b)| Change::Insert(p, b)),
        (any::<u16>(), 1u16..64).prop_map(|(p, n)| Change::Cut(p, n)),
    ]
}

fn apply(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let (Change::Set(p, _) | Change::Word(p, _) | Change::Insert(p, _) | Change::Cut(p, _)) = change;
        let at = bytes.len() * *p as usize / (u16::MAX as usize + 1);
        match change {
            Change::Set(_, byte) if at < bytes.len() => bytes[at] = *byte,
            Change::Word(_, word) if at + 8 <= bytes.len() => {
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            Change::Insert(_, new) => drop(bytes.splice(at..at, new.iter().copied())),
            Change::Cut(_, count) => drop(bytes.drain(at..bytes.len().min(at + *count as usize))),
            Change::Set(..) | Change::Word(..) => {}
        }
    }
    bytes
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Only the tables of the fixture, so that most changes hit them.
fn small_gguf() -> Vec<u8> {
    let mut bytes = fixture("gguf/tiny.gguf");
    bytes.truncate(2048);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        try_everything(&bytes);
        try_everything(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
        try_everything(&[&(bytes.len() as u64).to_le_bytes()[..], b"{", &bytes].concat());
    }

    #[test]
    fn changed_gguf_files_never_panic(changes in prop::collection::vec(change(), 1..6)) {
        try_everything(&apply(small_gguf(), &changes));
        open_everything(&apply(fixture("gguf/tiny.gguf"), &changes), "x.gguf", "{}");
    }

    #[test]
    fn changed_safetensors_files_never_panic(changes in prop::collection::vec(change(), 1..4)) {
        try_everything(&apply(fixture("dtypes.safetensors"), &changes));
        let config = r#"{"quantization_config":{"quant_method":"mxfp4"}}"#;
        open_everything(&apply(fixture("mxfp4/model.safetensors"), &changes), "model.safetensors", config);
    }

    #[test]
    fn changed_indices_and_configs_never_panic(changes in prop::collection::vec(change(), 1..4)) {
        let index = br#"{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors","y":"b/c"}}"#;
        let _ = bounded(&apply(index.to_vec(), &changes), parse_index);
        let config = apply(fixture("affine/config.json"), &changes);
        if let Ok(config) = serde_json::from_slice(&config) {
            let _ = QuantConfig::from_config(&config);
        }
    }
}
