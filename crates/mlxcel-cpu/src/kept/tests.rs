//! What is kept, when it is used and when it is not. That files are in large pages is not taken for granted: not every system
//! has them so, which is why these keepers are told what to think of that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use mlxcel_engine::weights::write::{NewTensor, RandomRows, write_gguf};
use mlxcel_engine::weights::{Bytes, Checkpoint, WeightTensor};
use mlxcel_ir::{DType, GgufFormat, QuantFormat};
use mlxcel_platform::files;
use tempfile::TempDir;

use super::head::Head;
use super::*;
use crate::simd::SimdLevel;
use crate::{CpuEngine, CpuOptions};

const Q8: DType = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
const Q4: DType = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4K));

/// Far more than is written at a time, in panels that end anywhere, of which the last are not full; and a weight that no level packs.
const WEIGHTS: [(&str, DType, [usize; 2]); 4] =
    [("a", Q8, [3021, 1056]), ("b", Q4, [700, 768]), ("f", DType::F32, [7, 9]), ("c", Q8, [7000, 2336])];

/// A checkpoint and a folder for what is packed of it.
struct Machine {
    root: TempDir,
}

/// What a start found or made.
struct Start {
    is_mapped: Vec<bool>,
    panels: Vec<Vec<u8>>,
}

impl Machine {
    fn new() -> Self {
        let machine = Machine { root: tempfile::tempdir().unwrap() };
        machine.write(1);
        machine
    }

    fn model(&self) -> PathBuf {
        self.root.path().join("model.gguf")
    }

    fn packed(&self) -> PathBuf {
        self.root.path().join("packed")
    }

    /// The same model with numbers of another seed.
    fn write(&self, seed: u64) {
        let tensors: Vec<NewTensor> = WEIGHTS
            .iter()
            .map(|(name, dtype, shape)| {
                let key = RandomRows::key(seed, name);
                let rows = RandomRows { key, cols: shape[1], mean: 0.0, deviation: 1.0 };
                NewTensor {
                    name: name.to_string(),
                    dtype: *dtype,
                    shape: shape.to_vec(),
                    rows: Box::new(rows),
                }
            })
            .collect();
        let mut file = fs::File::create(self.model()).unwrap();
        write_gguf(&mut file, &[], &tensors, &mut ()).unwrap();
    }

    fn matrices(&self) -> Vec<Matrix> {
        let checkpoint = Checkpoint::open(self.model()).unwrap();
        let matrix = |(name, dtype, shape): &(&str, DType, [usize; 2])| {
            Matrix::new(*dtype, shape.to_vec(), vec![checkpoint.tensor(name).unwrap()]).unwrap()
        };
        WEIGHTS.iter().map(matrix).collect()
    }

    fn keeper(&self) -> Keeper {
        Keeper { root: self.packed(), complain: Some(listen), suits: |_| true }
    }

    fn start(&self) -> Start {
        start(&mut self.matrices(), Some(&self.keeper()))
    }

    /// The same without keeping anything.
    fn start_in_memory(&self) -> Start {
        start(&mut self.matrices(), None)
    }

    /// The file that is kept, the only one.
    fn kept(&self) -> PathBuf {
        let files = self.files();
        assert!(matches!(files.as_slice(), [one] if one.extension().unwrap() == "panels"), "{files:?}");
        files[0].clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        let below = |folder: &Path| -> Vec<PathBuf> {
            fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        };
        below(&self.packed()).iter().flat_map(|folder| below(folder)).collect()
    }

    /// What was said about this machine's folders.
    fn heard(&self) -> Vec<String> {
        let root = self.root.path().to_str().unwrap();
        SAID.lock().unwrap().iter().filter(|line| line.contains(root)).cloned().collect()
    }
}

static SAID: Mutex<Vec<String>> = Mutex::new(vec![]);

fn listen(error: &KeptError) {
    SAID.lock().unwrap().push(error.to_string());
}

fn start(matrices: &mut [Matrix], keeper: Option<&Keeper>) -> Start {
    let engine = CpuEngine::new(CpuOptions { threads: Some(3), ..CpuOptions::default() }).unwrap();
    let ctx = &engine.ctx;
    let all: Vec<usize> = (0..matrices.len()).collect();
    if let Some(keeper) = keeper {
        keeper.pack(ctx, matrices, &all).unwrap();
    }
    for matrix in matrices.iter_mut().filter(|matrix| matrix.packed().is_none()) {
        matrix.pack(ctx).unwrap();
    }
    let packed = || matrices.iter().filter_map(|m| Some((m.packed()?.data(), m.form(ctx.level)?.bytes())));
    Start {
        is_mapped: packed().map(|(data, _)| matches!(data, Memory::Mapped(..))).collect(),
        panels: packed().map(|(data, len)| data.bytes(len).to_vec()).collect(),
    }
}

/// Which file it is, and when it was written.
fn stamp(path: &Path) -> [u64; 6] {
    files::stamp(&fs::metadata(path).unwrap())
}

/// Where nothing is packed, nothing can be kept.
fn packs() -> bool {
    SimdLevel::best().has_byte_products()
}

fn assert_same(found: &Start, expected: &Start) {
    assert!(found.panels == expected.panels, "panels differ");
}

#[test]
fn the_second_start_maps_what_the_first_one_packed() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let expected = machine.start_in_memory();
    assert_eq!(expected.is_mapped, [false; 3]);
    let first = machine.start();
    let before = stamp(&machine.kept());
    let second = machine.start();
    for start in [&first, &second] {
        assert_eq!(start.is_mapped, [true; 3]);
        assert_same(start, &expected);
    }
    assert_eq!(stamp(&machine.kept()), before, "the file is the same");
    assert_eq!(machine.heard(), [""; 0]);
    let folder = machine.packed().join(files::key(&machine.model().canonicalize().unwrap()));
    assert!(machine.kept().starts_with(folder), "who removes the model finds it");
}

#[test]
fn what_lies_between_and_behind_weights_is_zero() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    machine.start();
    let plan = Plan::new(SimdLevel::best(), &machine.matrices(), &[0, 1, 2, 3]).unwrap();
    let bytes = fs::read(machine.kept()).unwrap().split_off(head::BYTES);
    let next = plan.pieces[1..].iter().map(|piece| piece.at).chain([plan.len]);
    let gaps: Vec<&[u8]> = plan
        .pieces
        .iter()
        .zip(next)
        .map(|(piece, next)| &bytes[piece.at + piece.form.bytes()..next])
        .collect();
    assert!(!gaps[0].is_empty() && !gaps[2].is_empty(), "{:?}", plan.pieces);
    assert!(gaps.iter().all(|gap| gap.iter().all(|&byte| byte == 0)));
}

#[test]
fn a_model_that_changed_is_packed_anew_in_the_same_place() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    machine.start();
    let mut before = stamp(&machine.kept());
    let touch = || {
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options().write(true).open(machine.model()).unwrap().set_modified(later).unwrap();
    };
    let change: [&dyn Fn(); 2] = [&touch, &|| machine.write(2)];
    for change in change {
        change();
        let expected = machine.start_in_memory();
        let start = machine.start();
        assert_eq!(start.is_mapped, [true; 3]);
        assert_same(&start, &expected);
        let after = stamp(&machine.kept());
        assert_ne!(after, before);
        before = after;
    }
    assert_eq!(machine.heard(), [""; 0], "that is as it should be");
}

#[test]
fn a_damaged_file_is_told_and_packed_anew() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let expected = machine.start();
    let good = fs::read(machine.kept()).unwrap();
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let bad = [
        changed(0),
        changed(20),
        changed(200),
        changed(4090),
        changed(head::BYTES),
        changed(head::BYTES + 5_000_001),
        changed(good.len() - 1),
        good[..good.len() - 1].to_vec(),
        good[..4000].to_vec(),
        good[..head::BYTES].to_vec(),
        vec![],
        [&good[..], &[0]].concat(),
    ];
    for (i, bad) in bad.iter().enumerate() {
        let path = machine.kept();
        fs::remove_file(&path).unwrap();
        fs::write(&path, bad).unwrap();
        let start = machine.start();
        assert_eq!(start.is_mapped, [true; 3], "{i}");
        assert_same(&start, &expected);
        assert!(fs::read(machine.kept()).unwrap() == good, "{i}");
        let heard = machine.heard();
        assert_eq!(heard.len(), i + 1, "{heard:?}");
        assert!(heard[i].contains("damaged") && heard[i].contains(path.to_str().unwrap()), "{heard:?}");
    }
}

#[test]
fn another_layout_or_program_packs_anew() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    machine.start();
    let (path, level) = (machine.kept(), SimdLevel::best());
    let plan = Plan::new(level, &machine.matrices(), &[0, 1, 2, 3]).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let head = Head::of(&Plan { identity: [7; 32], ..plan }, 0).bytes();
    bytes[..head.len()].copy_from_slice(&head);
    fs::write(&path, &bytes).unwrap();
    let expected = machine.start_in_memory();
    assert_same(&machine.start(), &expected);
    assert!(fs::read(&path).unwrap() != bytes, "it was replaced");
    assert_eq!(machine.heard(), [""; 0], "what others wrote is not damaged");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told_and_costs_nothing_else() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    fs::write(machine.packed(), "a file").unwrap();
    let start = machine.start();
    assert_eq!(start.is_mapped, [false; 3]);
    assert_same(&start, &machine.start_in_memory());
    let heard = machine.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].contains("packed weights are not kept"), "{heard:?}");
}

#[test]
fn a_disk_that_is_full_on_the_way_is_told_and_leaves_nothing() {
    // A disk that is always full, on Linux.
    let Ok(full) = fs::File::options().read(true).write(true).open("/dev/full") else { return };
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let (mut matrices, level) = (machine.matrices(), SimdLevel::best());
    let engine = CpuEngine::new(CpuOptions::default()).unwrap();
    let plan = Plan::new(level, &matrices, &[0, 1, 2, 3]).unwrap();
    let place = Place::new(&machine.keeper(), &plan);
    let failed = fill::fill(&engine.ctx, &plan, &matrices, (&place, &full));
    assert!(matches!(failed, Err(fill::Failure::Kept(KeptError::Io { .. }))));
    let start = start(&mut matrices, None);
    assert_same(&start, &machine.start_in_memory());
}

#[test]
fn a_disk_without_room_is_told_before_anything_is_written() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let (matrices, level) = (machine.matrices(), SimdLevel::best());
    let engine = CpuEngine::new(CpuOptions::default()).unwrap();
    let plan = Plan::new(level, &matrices, &[0, 1, 2, 3]).unwrap();
    let plan = Plan { len: 1 << 60, ..plan };
    let failed = Place::new(&machine.keeper(), &plan).make(&engine.ctx, &plan, &matrices);
    assert!(matches!(failed, Err(fill::Failure::Kept(KeptError::NoRoom { needed, .. })) if needed > 1 << 60));
    assert_eq!(machine.files(), [""; 0].map(PathBuf::from));
}

#[test]
fn several_starts_at_once_leave_one_whole_file() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let expected = machine.start_in_memory();
    std::thread::scope(|scope| {
        let starts = [(); 3].map(|()| scope.spawn(|| machine.start()));
        for start in starts {
            let start = start.join().unwrap();
            assert_eq!(start.is_mapped, [true; 3]);
            assert_same(&start, &expected);
        }
    });
    let before = stamp(&machine.kept());
    assert_same(&machine.start(), &expected);
    assert_eq!((stamp(&machine.kept()), machine.heard()), (before, vec![]));
}

#[test]
fn nothing_is_kept_that_memory_is_faster_than() {
    if !packs() {
        return;
    }
    let machine = Machine::new();
    let expected = machine.start_in_memory();
    let small = Keeper { suits: |_| false, ..machine.keeper() };
    let first = start(&mut machine.matrices(), Some(&small));
    assert_eq!((first.is_mapped.as_slice(), machine.files()), (&[false; 3][..], vec![]));
    assert_same(&first, &expected);
    let (matrices, file) = (machine.matrices(), tempfile::tempfile().unwrap());
    let engine = CpuEngine::new(CpuOptions::default()).unwrap();
    let plan = Plan::new(SimdLevel::best(), &matrices, &[0, 1, 2, 3]).unwrap();
    let none = fill::fill(&engine.ctx, &plan, &matrices, (&Place::new(&small, &plan), &file));
    assert!(matches!(none, Ok(None)));
    let written = file.metadata().unwrap().len() as usize;
    assert_eq!(written, head::BYTES + fill::WINDOW_MAX, "it is found out at once");
    machine.start();
    let before = stamp(&machine.kept());
    let second = start(&mut machine.matrices(), Some(&small));
    assert_eq!(second.is_mapped, [false; 3]);
    assert_same(&second, &expected);
    assert_eq!(
        stamp(&machine.kept()),
        before,
        "a file is left alone, since it may lie in large pages the next time"
    );
    assert_eq!(machine.heard(), [""; 0]);
}

#[test]
fn what_killed_processes_left_and_what_belongs_to_nothing_is_cleared_away() {
    if !packs() {
        return;
    }
    let (machine, gone) = (Machine::new(), Machine::new());
    let keeper = machine.keeper();
    start(&mut gone.matrices(), Some(&keeper));
    let orphan = machine.kept();
    drop(gone);
    let folder = machine.packed().join("0123456789abcdef0123456789abcdef");
    fs::create_dir(&folder).unwrap();
    let (left, busy, other) =
        (folder.join("a.1-0.draft"), folder.join("a.2-0.draft"), folder.join("notes.txt"));
    [&left, &busy, &other].iter().for_each(|path| fs::write(path, "mine").unwrap());
    let lock = fs::File::open(&busy).unwrap();
    lock.lock().unwrap();
    machine.start();
    assert!(!left.exists() && busy.exists() && other.exists());
    assert!(!orphan.exists() && !orphan.parent().unwrap().exists());
    assert_eq!(machine.files().len(), 3);
}

#[test]
fn what_is_in_memory_or_hardly_anything_is_packed_at_every_start() {
    if !packs() {
        return;
    }
    let (machine, level) = (Machine::new(), SimdLevel::best());
    let mut matrices = machine.matrices();
    // As if it had been folded.
    let copied: Vec<_> = matrices[0].segments().iter().map(copy).collect();
    matrices[0] = Matrix::new(Q8, WEIGHTS[0].2.to_vec(), copied).unwrap();
    let plan = Plan::new(level, &matrices, &[0, 1, 2, 3]).unwrap();
    assert_eq!(plan.pieces.iter().map(|piece| piece.matrix).collect::<Vec<_>>(), [1, 3]);
    assert!(Plan::new(level, &matrices, &[1]).is_none(), "less than a large page");
    let start = start(&mut matrices, Some(&machine.keeper()));
    assert_eq!(start.is_mapped, [false, true, true]);
    assert_same(&start, &machine.start_in_memory());
}

fn copy(t: &WeightTensor) -> WeightTensor {
    let parts = t.parts.iter().map(|part| Bytes::copied(&[part])).collect();
    WeightTensor::new(t.dtype, t.shape.clone(), parts).unwrap()
}

#[test]
fn a_head_that_is_read_says_what_was_written() {
    let identity = std::array::from_fn(|i| i as u8);
    for source in ["", "/models/ä.gguf"] {
        let head = Head { identity, len: 77, hash: 5, source: source.into() };
        let bytes = head.bytes();
        assert_eq!(bytes.len(), head::BYTES);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("head");
        fs::write(&path, &bytes).unwrap();
        assert_eq!(Head::at(&path), Some(head));
    }
    let long = Head { identity, len: 1, hash: 1, source: "x".repeat(5000).into() };
    assert_eq!(long.bytes().len(), head::BYTES, "a name that does not fit is left out");
}

#[test]
fn levels_share_what_is_the_same_and_nothing_else() {
    let machine = Machine::new();
    let name = |level, matrices: &[Matrix]| Plan::new(level, matrices, &[0, 1, 2, 3]).map(|plan| plan.name);
    let mut matrices = machine.matrices();
    let codes = name(SimdLevel::Avx512Vnni, &matrices);
    assert!(codes.is_some());
    assert_eq!(name(SimdLevel::Avx2, &matrices), codes);
    assert_eq!(name(SimdLevel::Amx, &matrices), codes);
    assert_eq!(name(SimdLevel::Baseline, &matrices), None, "nothing is packed");
    // The same bytes in another format.
    let q4 = matrices[1].segments()[0].clone();
    let other = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));
    let t = WeightTensor::new(other, WEIGHTS[1].2.to_vec(), q4.parts.clone()).unwrap();
    matrices[1] = Matrix::new(other, WEIGHTS[1].2.to_vec(), vec![t]).unwrap();
    assert_ne!(name(SimdLevel::Avx2, &matrices), codes);
    // The same bytes as halves, which only tiles are packed from.
    let halves = WeightTensor::new(DType::BF16, vec![350, 432], q4.parts.clone()).unwrap();
    matrices[1] = Matrix::new(DType::BF16, vec![350, 432], vec![halves]).unwrap();
    let [tiles, none] = [SimdLevel::Amx, SimdLevel::Avx512Vnni].map(|level| name(level, &matrices));
    assert!(tiles.is_some() && none.is_some());
    assert_ne!(tiles, none);
}
