//! Corrupt safetensors files, indices and configs, each refused with the error that says what is wrong.

use std::path::Path;

use crate::forge::{Forge, entry, safetensors};
use mlxcel_weights::index::parse_index;
use mlxcel_weights::safetensors::parse_header;
use mlxcel_weights::{Checkpoint, WeightsError as E};

macro_rules! refused {
    ($parse:expr; $($test:ident: $bytes:expr => $error:pat $(if $guard:expr)?,)*) => {$(
        #[test]
        fn $test() {
            let bytes = $bytes;
            let error = $parse(bytes.as_ref()).unwrap_err();
            assert!(matches!(&error, $error $(if $guard)?), "{error:?}");
        }
    )*};
}

fn file(entries: &[String], data: usize) -> Vec<u8> {
    safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; data])
}

fn f32s(name: &str, range: std::ops::Range<usize>) -> String {
    entry(name, "F32", &[range.len() / 4], range)
}

fn said_length(length: u64) -> Vec<u8> {
    Forge::default().u64(length).raw(b"{}").0
}

refused! { parse_header;
    an_empty_file_is_refused: [] => E::Truncated { .. },
    a_file_shorter_than_its_length_field_is_refused: [2, 0, 0] => E::Truncated { .. },
    a_header_length_of_two_to_the_63_is_refused: said_length(1 << 63) => E::HeaderTooLong { .. },
    a_header_length_of_all_ones_is_refused: said_length(u64::MAX) => E::HeaderTooLong { .. },
    a_header_longer_than_the_file_is_refused: said_length(3) => E::Truncated { needed: 3, available: 2, .. },
    an_empty_header_is_refused: said_length(0) => E::HeaderStart,
    a_header_that_is_an_array_is_refused: safetensors("[]", &[]) => E::HeaderStart,
    a_header_that_begins_with_a_space_is_refused: safetensors(" {}", &[]) => E::HeaderStart,
    a_header_that_is_cut_is_refused: safetensors("{\"a\":", &[]) => E::Json { .. },
    a_header_with_text_after_it_is_refused: safetensors("{}x", &[]) => E::Json { .. },
    a_header_that_is_not_utf8_is_refused:
        Forge::default().u64(5).raw(b"{\"\xff\"}").0 => E::Json { .. },
    a_header_nested_a_hundred_thousand_deep_is_refused:
        safetensors(&format!("{{\"__metadata__\":{}", "[".repeat(100_000)), &[]) => E::Json { .. },
    overlapping_tensors_are_refused:
        file(&[f32s("a", 0..8), f32s("b", 4..12)], 12) => E::BadOffsets { begin: 4, previous: 8, .. },
    two_tensors_in_the_same_bytes_are_refused:
        file(&[f32s("a", 0..8), f32s("b", 0..8)], 8) => E::BadOffsets { .. },
    a_hole_between_tensors_is_refused:
        file(&[f32s("a", 0..4), f32s("b", 8..12)], 12) => E::BadOffsets { begin: 8, previous: 4, .. },
    a_hole_before_the_first_tensor_is_refused: file(&[f32s("a", 4..8)], 8) => E::BadOffsets { .. },
    offsets_in_reverse_are_refused:
        file(&[f32s("a", 0..4), r#""b":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}"#.into()], 4)
        => E::BadOffsets { begin: 4, end: 0, .. },
    data_beyond_the_end_is_refused: file(&[f32s("a", 0..8)], 4) => E::Uncovered { covered: 8, length: 4 },
    bytes_after_the_last_tensor_are_refused: file(&[f32s("a", 0..8)], 9) => E::Uncovered { .. },
    a_shape_that_does_not_fit_its_bytes_is_refused:
        file(&[entry("a", "F32", &[3], 0..8)], 8) => E::SizeMismatch { tensor, .. } if tensor == "a",
    a_shape_whose_product_overflows_is_refused:
        file(&[entry("a", "F32", &[1 << 32, 1 << 32], 0..0)], 0) => E::SizeMismatch { .. },
    a_shape_whose_bytes_overflow_is_refused:
        file(&[entry("a", "F64", &[1 << 61], 0..0)], 0) => E::SizeMismatch { .. },
    a_negative_dimension_is_refused:
        safetensors(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#, &[]) => E::Json { .. },
    a_dimension_beyond_64_bits_is_refused:
        safetensors(r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}}"#, &[])
        => E::Json { .. },
    three_offsets_are_refused:
        safetensors(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}}"#, &[]) => E::Json { .. },
    a_tensor_without_a_shape_is_refused:
        safetensors(r#"{"a":{"dtype":"U8","data_offsets":[0,0]}}"#, &[]) => E::Json { .. },
    an_unknown_element_type_is_refused:
        file(&[entry("a", "F4", &[2], 0..1)], 1) => E::UnknownDtype { dtype, .. } if dtype == "F4",
    a_tensor_that_occurs_twice_is_refused:
        file(&[f32s("a", 0..4), f32s("a", 4..8)], 8) => E::DuplicateTensor { tensor } if tensor == "a",
}

#[test]
fn sound_headers_with_metadata_padding_and_empty_tensors_are_read() {
    let header =
        format!(r#"{{"__metadata__":{{"format":"pt"}},{},{}}}   "#, f32s("b", 0..4), f32s("a", 0..0));
    let tensors = parse_header(&safetensors(&header, &[0; 4])).unwrap();
    assert_eq!(tensors.len(), 2);
    assert_eq!(tensors["b"].range, header.len() + 8..header.len() + 12);
    assert!(parse_header(&safetensors("{}", &[])).unwrap().is_empty());
}

fn index(file: &str) -> String {
    format!(r#"{{"metadata":{{"total_size":4}},"weight_map":{{"x":"{file}"}}}}"#)
}

refused! { parse_index;
    a_shard_in_the_parent_folder_is_refused: index("../secret.safetensors") => E::BadShardPath { .. },
    a_shard_that_climbs_out_later_is_refused: index("a/../../b.safetensors") => E::BadShardPath { .. },
    an_absolute_shard_is_refused: index("/etc/passwd") => E::BadShardPath { .. },
    a_shard_on_a_windows_drive_is_refused: index("C:evil.safetensors") => E::BadShardPath { .. },
    a_shard_with_backslashes_is_refused: index("..\\\\evil.safetensors") => E::BadShardPath { .. },
    a_shard_with_a_nul_is_refused: index("a\\u0000.safetensors") => E::BadShardPath { .. },
    a_shard_without_a_name_is_refused: index("") => E::BadShardPath { .. },
    a_shard_that_is_no_string_is_refused: r#"{"weight_map":{"x":["a"]}}"# => E::Json { .. },
    an_index_without_a_map_is_refused: r#"{"metadata":{}}"# => E::Json { .. },
    an_index_that_is_cut_is_refused: r#"{"weight_map":{"x":"#=> E::Json { .. },
    an_index_that_names_a_tensor_twice_is_refused: r#"{"weight_map":{"x":"a","x":"b"}}"# => E::Json { .. },
    an_index_nested_a_hundred_thousand_deep_is_refused: "{\"metadata\":".repeat(100_000) => E::Json { .. },
}

/// A folder with these files, opened.
fn open(files: &[(&str, &[u8])]) -> Result<Checkpoint, E> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    Checkpoint::open(folder.path())
}

/// What is wrong inside the file of this name.
fn inside(error: E, name: &str) -> E {
    let E::InFile { path, error } = error else { panic!("{error:?} names no file") };
    assert_eq!(path.file_name(), Some(name.as_ref()));
    *error
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn an_index_that_names_a_missing_shard_is_refused_with_its_path() {
    let error = open(&[(INDEX, index("gone.safetensors").as_bytes())]).unwrap_err();
    assert!(matches!(&error, E::Io { path, .. } if path.ends_with("gone.safetensors")), "{error:?}");
}

#[test]
fn an_index_that_names_a_missing_tensor_is_refused() {
    let shard = file(&[f32s("y", 0..4)], 4);
    let error = open(&[(INDEX, index("a.safetensors").as_bytes()), ("a.safetensors", &shard)]).unwrap_err();
    assert!(matches!(inside(error, INDEX), E::NotInShard { tensor, .. } if tensor == "x"));
}

#[test]
fn a_tensor_in_another_shard_than_the_index_says_is_refused() {
    let (x, y) = (file(&[f32s("x", 0..4)], 4), file(&[f32s("y", 0..4)], 4));
    let map = br#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#;
    let error = open(&[(INDEX, map), ("a.safetensors", &x), ("b.safetensors", &y)]).unwrap_err();
    assert!(matches!(inside(error, INDEX), E::NotInShard { .. }));
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let x = file(&[f32s("x", 0..4)], 4);
    let both = file(&[f32s("x", 0..4), f32s("y", 4..8)], 8);
    let map = br#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#;
    let error = open(&[(INDEX, map), ("a.safetensors", &x), ("b.safetensors", &both)]).unwrap_err();
    assert!(matches!(inside(error, "b.safetensors"), E::DuplicateTensor { .. }));
}

#[test]
fn a_corrupt_shard_is_named() {
    let index = index("a.safetensors");
    let error = open(&[(INDEX, index.as_bytes()), ("a.safetensors", b"junk")]).unwrap_err();
    assert!(matches!(inside(error, "a.safetensors"), E::Truncated { .. }));
}

/// A folder with one tensor of eight words, scales and biases as given, and this config.
fn quantised(config: &str, parts: &[String], data: usize) -> Result<Checkpoint, E> {
    open(&[("model.safetensors", &file(parts, data)), ("config.json", config.as_bytes())])
}

/// Codes of `words` words, then `groups` scales and biases of two bytes.
fn affine(words: usize, groups: usize, scale: &str) -> (Vec<String>, usize) {
    let (codes, scales) = (words * 4, groups * 2);
    let parts = vec![
        entry("m.weight", "U32", &[1, words], 0..codes),
        entry("m.scales", scale, &[1, groups], codes..codes + scales),
        entry("m.biases", scale, &[1, groups], codes + scales..codes + 2 * scales),
    ];
    (parts, codes + 2 * scales)
}

const FOUR_BITS: &str = r#"{"quantization":{"group_size":32,"bits":4}}"#;

#[test]
fn a_quantised_tensor_whose_words_do_not_fit_its_scales_is_refused() {
    let (parts, data) = affine(8, 2, "F16");
    assert!(quantised(FOUR_BITS, &parts, data).is_ok());
    let (parts, data) = affine(7, 2, "F16");
    let error = quantised(FOUR_BITS, &parts, data).unwrap_err();
    assert!(matches!(&error, E::BadPart { part, .. } if part == "m.weight"), "{error:?}");
}

#[test]
fn scales_of_an_integer_type_are_refused() {
    let (parts, data) = affine(8, 2, "I16");
    let error = quantised(FOUR_BITS, &parts, data).unwrap_err();
    assert!(matches!(&error, E::BadPart { part, .. } if part == "m.scales"), "{error:?}");
}

#[test]
fn a_quantised_tensor_without_biases_is_refused() {
    let (mut parts, data) = affine(8, 2, "F16");
    parts.pop();
    let error = quantised(FOUR_BITS, &parts, data - 4).unwrap_err();
    assert!(matches!(&error, E::MissingPart { part, .. } if part == "m.biases"), "{error:?}");
}

#[test]
fn a_quantised_tensor_that_the_config_does_not_describe_is_refused() {
    let (parts, data) = affine(8, 2, "F16");
    for config in ["{}", r#"{"quantization":{"group_size":32,"bits":4,"m":false}}"#] {
        let error = quantised(config, &parts, data).unwrap_err();
        assert!(matches!(&error, E::NoQuantConfig { tensor } if tensor == "m.weight"), "{error:?}");
    }
}

#[test]
fn blocks_that_do_not_fit_their_scales_are_refused() {
    let parts = [entry("m_blocks", "U8", &[1, 2, 16], 0..32), entry("m_scales", "U8", &[1, 1], 32..33)];
    let error = quantised("{}", &parts, 33).unwrap_err();
    assert!(matches!(&error, E::BadPart { part, .. } if part == "m_blocks"), "{error:?}");
}

#[test]
fn blocks_beside_a_tensor_of_the_same_name_are_refused() {
    let parts = [
        entry("m_blocks", "U8", &[1, 1, 16], 0..16),
        entry("m_scales", "U8", &[1, 1], 16..17),
        entry("m", "U8", &[1], 17..18),
    ];
    let error = quantised("{}", &parts, 18).unwrap_err();
    assert!(matches!(&error, E::DuplicateTensor { .. }), "{error:?}");
}

#[test]
fn a_config_that_is_not_json_is_refused_by_path() {
    let parts = [f32s("x", 0..4)];
    let deep = "[".repeat(100_000);
    for config in ["", "{", r#"{"rope_theta": NaN}"#, r#"{"a": 1e400}"#, &deep, "\u{feff}{}"] {
        let error = quantised(config, &parts, 4).unwrap_err();
        assert!(matches!(inside(error, "config.json"), E::Json { .. }));
    }
}

#[test]
fn a_config_of_seventeen_megabytes_is_refused_unread() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file(&[f32s("x", 0..4)], 4)).unwrap();
    let config = std::fs::File::create(folder.path().join("config.json")).unwrap();
    config.set_len(17 << 20).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(inside(error, "config.json"), E::TooLarge { .. }));
}

#[test]
fn what_is_not_a_checkpoint_is_refused_with_a_reason() {
    let error = Checkpoint::open(Path::new("/no/such/model")).unwrap_err();
    assert!(matches!(error, E::Io { .. }));
    assert!(matches!(open(&[]).unwrap_err(), E::NoWeights { .. }));
    let x = file(&[f32s("x", 0..4)], 4);
    let error = open(&[("a.safetensors", &x), ("b.safetensors", &x)]).unwrap_err();
    assert!(matches!(&error, E::Ambiguous { files, .. } if files == &["a.safetensors", "b.safetensors"]));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.bin"), b"").unwrap();
    assert!(matches!(Checkpoint::open(folder.path().join("model.bin")).unwrap_err(), E::UnknownKind { .. }));
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert!(matches!(Checkpoint::open(folder.path()).unwrap_err(), E::NotAFile { .. }));
}
