//! Corrupt GGUF files, each refused with the error that says what is wrong.

use crate::forge::Forge;
use mlxcel_weights::WeightsError as E;
use mlxcel_weights::gguf::parse_gguf;

macro_rules! refused {
    ($($test:ident: $bytes:expr => $error:pat $(if $guard:expr)?,)*) => {$(
        #[test]
        fn $test() {
            let error = parse_gguf(&$bytes).unwrap_err();
            assert!(matches!(&error, $error $(if $guard)?), "{error:?}");
        }
    )*};
}

/// One tensor `x` and 64 bytes of data.
fn one(dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    Forge::gguf(1, 0).tensor("x", dims, kind, offset).data(32, &[0; 64])
}

fn aligned_to(alignment: u32) -> Vec<u8> {
    Forge::gguf(1, 1).pair("general.alignment", alignment).tensor("x", &[4], 0, 0).data(32, &[0; 64])
}

/// One metadata pair `k` of a type, with this value.
fn pair(kind: u32, value: &[u8]) -> Vec<u8> {
    Forge::gguf(0, 1).string("k").u32(kind).raw(value).0
}

fn two(first: (&str, u64), second: (&str, u64)) -> Vec<u8> {
    let table = Forge::gguf(2, 0).tensor(first.0, &[16], 0, first.1).tensor(second.0, &[16], 0, second.1);
    table.data(32, &[0; 128])
}

/// Arrays in arrays, `depth` of them, the innermost empty.
fn nested(depth: usize) -> Vec<u8> {
    let start = Forge::gguf(0, 1).string("k").u32(9);
    (1..depth).fold(start, |f, _| f.u32(9).u64(1)).u32(4).u64(0).0
}

const HUGE: u64 = 1 << 63;

refused! {
    an_empty_file_is_refused: [] => E::Truncated { .. },
    a_file_with_another_magic_is_refused: *b"GGML\x03\0\0\0" => E::NotGguf { .. },
    a_file_that_ends_after_its_magic_is_refused: *b"GGUF" => E::Truncated { .. },
    version_one_is_refused: Forge::default().raw(b"GGUF").u32(1).0 => E::GgufVersion { version: 1 },
    version_four_is_refused: Forge::default().raw(b"GGUF").u32(4).0 => E::GgufVersion { version: 4 },
    a_big_endian_file_is_refused: Forge::default().raw(b"GGUF\0\0\0\x03").0 => E::GgufBigEndian,
    a_tensor_count_of_two_to_the_63_is_refused: Forge::gguf(HUGE, 0).0 => E::TooMany { count: HUGE, .. },
    a_metadata_count_of_two_to_the_63_is_refused: Forge::gguf(0, HUGE).0 => E::TooMany { count: HUGE, .. },
    counts_of_all_ones_are_refused: Forge::gguf(u64::MAX, u64::MAX).0 => E::TooMany { .. },
    a_key_longer_than_the_file_is_refused: Forge::gguf(0, 1).u64(HUGE).raw(&[0; 64]).0 => E::Truncated { .. },
    a_string_that_reaches_past_the_end_is_refused:
        pair(8, &100u64.to_le_bytes()) => E::Truncated { needed: 100, available: 0, .. },
    a_key_that_is_not_utf8_is_refused:
        Forge::gguf(0, 1).u64(1).raw(&[0xff]).raw(&[0; 64]).0 => E::NotUtf8 { .. },
    a_string_that_is_not_utf8_is_refused:
        pair(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xc0]) => E::NotUtf8 { .. },
    an_unknown_value_type_is_refused: pair(13, &[0; 8]) => E::UnknownValueType { code: 13, .. },
    an_unknown_array_type_is_refused:
        pair(9, &[99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => E::UnknownValueType { code: 99, .. },
    an_array_of_two_to_the_63_numbers_is_refused:
        Forge::gguf(0, 1).string("k").u32(9).u32(4).u64(HUGE).0 => E::TooMany { count: HUGE, .. },
    an_array_of_two_to_the_63_strings_is_refused:
        Forge::gguf(0, 1).string("k").u32(9).u32(8).u64(HUGE).0 => E::TooMany { count: HUGE, .. },
    an_array_length_whose_bytes_overflow_is_refused:
        Forge::gguf(0, 1).string("k").u32(9).u32(12).u64(HUGE / 4 + 1).0 => E::TooMany { .. },
    arrays_nested_a_hundred_deep_are_refused: nested(100) => E::NestedTooDeep { .. },
    a_key_that_occurs_twice_is_refused:
        Forge::gguf(0, 2).pair("k", 1).pair("k", 2).0 => E::DuplicateKey { key } if key == "k",
    an_alignment_of_zero_is_refused: aligned_to(0) => E::BadAlignment { alignment: 0, .. },
    an_alignment_that_is_no_power_of_two_is_refused: aligned_to(48) => E::BadAlignment { alignment: 48, .. },
    an_absurd_alignment_is_refused: aligned_to(1 << 31) => E::BadAlignment { .. },
    an_alignment_that_is_no_number_is_refused:
        Forge::gguf(0, 1).string("general.alignment").u32(8).string("32").0 => E::KeyType { .. },
    a_tensor_name_longer_than_the_file_is_refused:
        Forge::gguf(1, 0).u64(HUGE).raw(&[0; 64]).0 => E::Truncated { .. },
    five_dimensions_are_refused: one(&[1; 5], 0, 0) => E::BadRank { rank: 5, .. },
    four_thousand_million_dimensions_are_refused:
        Forge::gguf(1, 0).string("x").u32(u32::MAX).raw(&[0; 64]).0 => E::BadRank { .. },
    dimensions_whose_product_overflows_are_refused:
        one(&[1 << 32, 1 << 32], 0, 0) => E::BadShape { tensor, .. } if tensor == "x",
    dimensions_whose_bytes_overflow_are_refused: one(&[1 << 62], 0, 0) => E::BadShape { .. },
    dimensions_beyond_the_word_size_are_refused: one(&[u64::MAX, 2], 24, 0) => E::BadShape { .. },
    a_row_that_does_not_divide_into_blocks_is_refused: one(&[31, 2], 2, 0) => E::BadShape { .. },
    a_packed_scalar_is_refused: one(&[], 2, 0) => E::BadShape { .. },
    an_unknown_tensor_type_is_refused_by_number:
        one(&[256], 17, 0) => E::UnknownGgufType { tensor, code: 17 } if tensor == "x",
    a_removed_tensor_type_is_refused: one(&[256], 4, 0) => E::UnknownGgufType { code: 4, .. },
    a_tensor_larger_than_the_data_is_refused: one(&[17], 0, 0) => E::OutOfFile { bytes: 68, .. },
    an_offset_beyond_the_file_is_refused: one(&[4], 0, 1 << 40) => E::OutOfFile { .. },
    an_offset_that_overflows_is_refused: one(&[4], 0, u64::MAX - 31) => E::OutOfFile { .. },
    an_offset_between_alignments_is_refused: one(&[4], 0, 4) => E::Misaligned { offset: 4, .. },
    a_file_without_the_data_of_its_tensor_is_refused:
        Forge::gguf(1, 0).tensor("x", &[4], 0, 0).0 => E::OutOfFile { available: 0, .. },
    overlapping_tensors_are_refused: two(("a", 0), ("b", 32)) => E::Overlap { .. },
    a_tensor_that_occurs_twice_is_refused: two(("a", 0), ("a", 64)) => E::DuplicateTensor { .. },
}

#[test]
fn a_sound_file_of_the_same_kind_is_read() {
    let gguf = parse_gguf(&two(("a", 0), ("b", 64))).unwrap();
    assert_eq!(gguf.tensors["b"].shape, [16]);
    assert!(parse_gguf(&aligned_to(8)).is_ok());
    assert!(parse_gguf(&nested(4)).is_ok());
    assert!(parse_gguf(&one(&[32, 2], 2, 0)).is_ok());
    let version_two = Forge::default().raw(b"GGUF").u32(2).u64(0).u64(0).0;
    assert!(parse_gguf(&version_two).unwrap().tensors.is_empty());
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf/tiny.gguf")).unwrap();
    let end = parse_gguf(&whole).unwrap().tensors.values().map(|t| t.range.end).max().unwrap();
    for length in 0..end {
        assert!(parse_gguf(&whole[..length]).is_err(), "cut to {length} bytes");
    }
}
