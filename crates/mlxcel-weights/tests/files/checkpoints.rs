//! Sound checkpoints in every shape a folder can have.

use std::path::{Path, PathBuf};

use crate::forge::{Forge, entry, safetensors};
use mlxcel_ir::{DType, GgufFormat, QuantFormat};
use mlxcel_weights::{Checkpoint, GgufArray, GgufValue, Kind, WeightsError};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf").join(name)
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.tensor(name).unwrap().to_f32()
}

/// One tensor `x` of one number.
fn number(value: f32) -> Vec<u8> {
    safetensors(&format!("{{{}}}", entry("x", "F32", &[1], 0..4)), &value.to_le_bytes())
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn gguf_metadata_of_every_type_is_read() {
    let checkpoint = Checkpoint::open(fixture("tiny.gguf")).unwrap();
    assert_eq!(checkpoint.kind(), Kind::Gguf);
    assert!(checkpoint.config().is_none());
    let m = checkpoint.metadata().unwrap();
    assert_eq!(m.str("general.architecture").unwrap(), "test");
    for (key, value) in [("u8", 200), ("i8", -100), ("u16", 60000), ("i16", -30000), ("u32", 4_000_000_000)] {
        assert_eq!(m.i64(&format!("t.{key}")).unwrap(), value, "{key}");
    }
    assert_eq!(m.i64("t.i32").unwrap(), -2_000_000_000);
    assert_eq!(m.u64("t.u64").unwrap(), (1 << 63) + 1);
    assert_eq!(m.i64("t.i64").unwrap(), -(1 << 62));
    assert_eq!(m.f32("t.f32").unwrap(), 0.1);
    assert_eq!(m.require::<f64>("t.f64").unwrap(), 0.1);
    assert!(m.bool("t.bool").unwrap());
    assert_eq!(m.str("t.string").unwrap(), "grüße");
    assert_eq!(m.strings("t.strings").unwrap(), ["a", "", "ö"]);
    assert_eq!(m.i64s("t.ints").unwrap(), [1, -2, 3]);
    assert_eq!(m.f32s("t.floats").unwrap(), [0.5, -1.5]);
    assert_eq!(m.get("t.bools"), Some(&GgufValue::Array(GgufArray::Bool(vec![true, false]))));
    let Some(GgufValue::Array(GgufArray::Array(nested))) = m.get("t.nested") else { panic!("not nested") };
    assert_eq!(nested.iter().map(|a| a.to_i64s().unwrap()).collect::<Vec<_>>(), [vec![1, 2], vec![3]]);
}

#[test]
fn gguf_shapes_are_row_major_and_values_those_of_the_writer() {
    let checkpoint = Checkpoint::open(fixture("tiny.gguf")).unwrap();
    check_tensors(&checkpoint);
    assert!(checkpoint.tensor("f32").unwrap().parts[0].is_mapped());
    assert!(matches!(checkpoint.tensor("none"), Err(WeightsError::UnknownTensor { .. })));
}

fn check_tensors(checkpoint: &Checkpoint) {
    let q8 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
    assert_eq!(checkpoint.info("q8_0"), Some((q8, &[3, 64][..])));
    assert_eq!(checkpoint.info("i32"), Some((DType::I32, &[1, 2, 3][..])));
    assert_eq!(values(checkpoint, "i32"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    for name in ["q8_0", "q4_1", "bf16"] {
        assert_eq!(values(checkpoint, name), values(checkpoint, &format!("{name}.values")), "{name}");
    }
    for (full, half) in values(checkpoint, "f32").iter().zip(values(checkpoint, "f16")) {
        assert!((full - half).abs() < 2e-3, "{full} {half}");
    }
}

#[test]
fn a_split_gguf_is_one_checkpoint_from_whichever_part_it_is_opened() {
    for part in ["parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"] {
        let checkpoint = Checkpoint::open(fixture(part)).unwrap();
        assert_eq!(checkpoint.names().len(), 9);
        check_tensors(&checkpoint);
        assert_eq!(checkpoint.metadata().unwrap().i64("t.i8").unwrap(), -100);
    }
    let parts = ["parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"];
    let bytes = parts.map(|p| std::fs::read(fixture(p)).unwrap());
    let folder = folder(&[(parts[0], &bytes[0]), (parts[1], &bytes[1])]);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().names().len(), 9);
}

#[test]
fn a_split_gguf_with_a_missing_or_swapped_part_is_refused() {
    let parts = ["parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"];
    let bytes = parts.map(|p| std::fs::read(fixture(p)).unwrap());
    let missing = folder(&[(parts[0], &bytes[0])]);
    let error = Checkpoint::open(missing.path()).unwrap_err();
    assert!(matches!(&error, WeightsError::Io { path, .. } if path.ends_with(parts[1])), "{error:?}");
    let swapped = folder(&[(parts[0], &bytes[1]), (parts[1], &bytes[0])]);
    let error = Checkpoint::open(swapped.path()).unwrap_err();
    assert!(error.to_string().contains("part 2 of 2"), "{error}");
    let renamed = folder(&[("model.gguf", &bytes[0])]);
    let error = Checkpoint::open(renamed.path()).unwrap_err();
    assert!(error.to_string().contains("part 1 of 2"), "{error}");
}

#[test]
fn a_folder_with_one_gguf_is_that_file() {
    let folder = folder(&[("any.gguf", &std::fs::read(fixture("tiny.gguf")).unwrap()), ("README.md", b"")]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.kind(), checkpoint.folder()), (Kind::Gguf, folder.path()));
}

#[test]
fn model_safetensors_is_preferred_to_other_files() {
    let gguf = std::fs::read(fixture("tiny.gguf")).unwrap();
    let folder =
        folder(&[("model.safetensors", &number(1.0)), ("b.safetensors", &number(2.0)), ("c.gguf", &gguf)]);
    assert_eq!(values(&Checkpoint::open(folder.path()).unwrap(), "x"), [1.0]);
    assert_eq!(values(&Checkpoint::open(folder.path().join("b.safetensors")).unwrap(), "x"), [2.0]);
}

#[test]
fn shards_named_by_an_index_are_one_checkpoint() {
    let index = br#"{"weight_map":{"x":"a.safetensors","y":"sub/b.safetensors"}}"#;
    let y = safetensors(&format!("{{{}}}", entry("y", "I8", &[2], 0..2)), &[255, 2]);
    let folder = folder(&[("model.safetensors.index.json", index), ("a.safetensors", &number(3.0))]);
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("sub/b.safetensors"), y).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!((values(&checkpoint, "x"), values(&checkpoint, "y")), (vec![3.0], vec![-1.0, 2.0]));
}

#[test]
fn data_at_an_odd_address_is_copied_to_an_aligned_one() {
    for padding in 0..8 {
        let header = format!("{{{}}}{}", entry("x", "F64", &[2], 0..16), " ".repeat(padding));
        let data = [1.5f64, -2.0].map(f64::to_le_bytes).concat();
        let folder = folder(&[("model.safetensors", &safetensors(&header, &data))]);
        let tensor = Checkpoint::open(folder.path()).unwrap().tensor("x").unwrap();
        assert_eq!(tensor.parts[0].as_ptr().addr() % 8, 0);
        assert_eq!(tensor.parts[0].is_mapped(), header.len() % 8 == 0);
        assert_eq!(tensor.to_f32(), [1.5, -2.0]);
    }
}

#[test]
fn the_config_is_given_as_it_was_read() {
    let config = br#"{"model_type":"llama","rope_scaling":null,"hidden_size":8}"#;
    let folder = folder(&[("model.safetensors", &number(1.0)), ("config.json", config)]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config().unwrap()["hidden_size"], 8);
}

#[test]
fn tensors_outlive_their_checkpoint_and_their_file() {
    let folder = folder(&[("model.safetensors", &number(4.0))]);
    let tensor = Checkpoint::open(folder.path()).unwrap().tensor("x").unwrap();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert_eq!(tensor.to_f32(), [4.0]);
}

#[test]
fn a_gguf_of_a_gigabyte_is_opened_without_reading_its_data() {
    // The file is a hole on disk: touching all of it would be noticed in the memory of this process.
    const BYTES: u64 = 1 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let start = Forge::gguf(1, 0).tensor("x", &[1 << 15, BYTES >> 17], 0, 0).data(32, &[]);
    std::fs::write(&path, &start).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(start.len() as u64 + BYTES).unwrap();
    let before = resident_bytes();
    let tensor = Checkpoint::open(&path).unwrap().tensor("x").unwrap();
    assert_eq!(tensor.byte_len() as u64, BYTES);
    assert!(resident_bytes() < before + (64 << 20), "opening the file read it");
    assert_eq!(tensor.rows(7..8).unwrap().to_f32(), [0.0; 1 << 15]);
}

/// Memory in use by this process, where the system tells.
fn resident_bytes() -> u64 {
    let Ok(status) = std::fs::read_to_string(Path::new("/proc/self/status")) else { return 0 };
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
