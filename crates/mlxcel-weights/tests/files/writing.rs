//! Files that were written, read back: by this crate's own readers, which are held to the formats by the files of
//! other packages, and byte by byte where the format leaves no choice.

use std::io::{BufWriter, Cursor};

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};
use mlxcel_weights::write::{NewTensor, RandomRows, Rows, Watch, write_gguf, write_safetensors};
use mlxcel_weights::{Checkpoint, GgufArray, GgufValue, WeightsError};

const AFFINE: DType = DType::Quant(QuantFormat::Affine { bits: 4, group: 32, scale: ScaleType::BF16 });
const Q8_0: DType = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));

fn noise(name: &str, shape: &[usize]) -> RandomRows {
    let cols = shape.last().copied().unwrap_or(1);
    RandomRows { key: RandomRows::key(3, name), cols, mean: 0.0, deviation: 1.0 }
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> NewTensor {
    NewTensor { name: name.to_string(), dtype, shape: shape.to_vec(), rows: Box::new(noise(name, shape)) }
}

fn numbers(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; shape.iter().product()];
    noise(name, shape).fill(0, &mut out);
    out
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

/// Sizes that put narrow arrays between wide ones, and more elements than are encoded at a time.
fn mixed(quantised: DType) -> Vec<NewTensor> {
    vec![
        tensor("odd", DType::F16, &[3]),
        tensor("big.weight", quantised, &[1031, 320]),
        tensor("wide", DType::F32, &[5, 7]),
        tensor("scalar", DType::F32, &[]),
        tensor("stack.weight", quantised, &[2, 3, 64]),
        tensor("brain", DType::BF16, &[2, 3]),
        tensor("empty", DType::F32, &[0, 4]),
    ]
}

fn check_mixed(checkpoint: &Checkpoint, quantised: DType) {
    for written in mixed(quantised) {
        let found = checkpoint.tensor(&written.name).unwrap();
        assert_eq!((found.dtype, &found.shape), (written.dtype, &written.shape), "{}", written.name);
        let tolerance = match written.dtype {
            DType::F32 => 0.0,
            DType::F16 => 2e-3,
            DType::BF16 => 2e-2,
            _ => 0.4,
        };
        let expected = numbers(&written.name, &written.shape);
        let difference = largest_difference(&found.to_f32(), &expected);
        assert!(difference <= tolerance, "{}: {difference}", written.name);
        assert!(found.parts.iter().all(|p| p.is_empty() || p.is_mapped()), "{} lies unaligned", written.name);
    }
}

#[test]
fn a_safetensors_file_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
    write_safetensors(&mut BufWriter::new(file), &mixed(AFFINE), &mut ()).unwrap();
    let config = r#"{"quantization": {"group_size": 32, "bits": 4}}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    check_mixed(&Checkpoint::open(folder.path()).unwrap(), AFFINE);
}

#[test]
fn a_gguf_file_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let strings = GgufArray::String(vec!["a".into(), String::new(), "ü".into()]);
    let metadata = vec![
        ("text".to_string(), GgufValue::String("x\ny".into())),
        ("number".to_string(), GgufValue::U32(7)),
        ("negative".to_string(), GgufValue::I64(-7)),
        ("flag".to_string(), GgufValue::Bool(true)),
        ("float".to_string(), GgufValue::F32(0.5)),
        ("strings".to_string(), GgufValue::Array(strings)),
        ("flags".to_string(), GgufValue::Array(GgufArray::Bool(vec![true, false]))),
        ("nested".to_string(), GgufValue::Array(GgufArray::Array(vec![GgufArray::U8(vec![1, 2])]))),
    ];
    let mut file = std::fs::File::create(&path).unwrap();
    write_gguf(&mut file, &metadata, &mixed(Q8_0), &mut ()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    check_mixed(&checkpoint, Q8_0);
    for (key, value) in &metadata {
        assert_eq!(checkpoint.metadata().unwrap().get(key), Some(value), "{key}");
    }
    assert_eq!(checkpoint.metadata().unwrap().iter().count(), metadata.len());
}

/// A stored tensor under another name.
struct Stored(mlxcel_weights::WeightTensor);

impl Rows for Stored {
    fn fill(&self, _first: usize, _out: &mut [f32]) {
        panic!("what is copied is not decoded");
    }

    fn stored(&self) -> Option<&mlxcel_weights::WeightTensor> {
        Some(&self.0)
    }
}

#[test]
fn a_tensor_that_keeps_its_type_is_copied_to_the_bit() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let source = Checkpoint::open(fixtures.join("affine")).unwrap();
    let stored = source.tensor("b4_g64_bf16.weight").unwrap();
    let (dtype, shape) = (stored.dtype, stored.shape.clone());
    let copy = NewTensor { name: "x.weight".into(), dtype, shape, rows: Box::new(Stored(stored.clone())) };
    let mut file = Cursor::new(Vec::new());
    write_safetensors(&mut file, &[copy], &mut ()).unwrap();
    let bytes = file.into_inner();
    let header = mlxcel_weights::safetensors::parse_header(&bytes).unwrap();
    for (part, name) in stored.parts.iter().zip(["x.weight", "x.scales", "x.biases"]) {
        assert_eq!(bytes[header[name].range.clone()], **part, "{name}");
    }
}

#[test]
fn a_type_that_a_format_lacks_is_refused_by_name() {
    let mut out = Cursor::new(Vec::new());
    let error = write_safetensors(&mut out, &[tensor("x.weight", Q8_0, &[2, 32])], &mut ()).unwrap_err();
    assert!(
        matches!(&error, WeightsError::NotInSafetensors { tensor, .. } if tensor == "x.weight"),
        "{error}"
    );
    let error = write_gguf(&mut out, &[], &[tensor("y.weight", AFFINE, &[2, 32])], &mut ()).unwrap_err();
    assert!(matches!(&error, WeightsError::NotInGguf { tensor, .. } if tensor == "y.weight"), "{error}");
    let torn = [tensor("z.weight", Q8_0, &[2, 33])];
    let error = write_gguf(&mut out, &[], &torn, &mut ()).unwrap_err();
    assert!(matches!(&error, WeightsError::CannotStore { tensor, .. } if tensor == "z.weight"), "{error}");
}

/// Ends the writing after some bytes.
struct Patience(u64);

impl Watch for Patience {
    fn wrote(&mut self, bytes: u64) -> bool {
        self.0 = self.0.saturating_sub(bytes);
        self.0 > 0
    }
}

#[test]
fn who_watches_may_end_the_writing() {
    let mut out = Cursor::new(Vec::new());
    let result = write_gguf(&mut out, &[], &mixed(Q8_0), &mut Patience(100_000));
    assert!(matches!(result, Err(WeightsError::Stopped)));
    let whole: u64 = mixed(Q8_0).iter().map(|t| t.bytes().unwrap()).sum();
    assert!((out.into_inner().len() as u64) < whole);
}

/// A disk that is full after some bytes.
struct FullDisk(usize);

impl std::io::Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_that_says_so() {
    let error = write_gguf(&mut FullDisk(200_000), &[], &mixed(Q8_0), &mut ()).unwrap_err();
    let full = |e: &std::io::Error| e.kind() == std::io::ErrorKind::StorageFull;
    assert!(matches!(&error, WeightsError::Write { source } if full(source)), "{error}");
}
