//! Compile options in the wire form of protocol buffers: one device, one replica, and overrides of XLA's flags. The
//! encoder knows two kinds of fields, which is all that these messages need.
//!
//! <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>

/// Fields of `CompileOptionsProto`, `ExecutableBuildOptionsProto` and `OptionOverrideProto`.
const BUILD_OPTIONS: u64 = 3;
const OVERRIDES: u64 = 7;
const DEVICE_ORDINAL: u64 = 1;
const NUM_REPLICAS: u64 = 4;
const NUM_PARTITIONS: u64 = 5;
const KEY: u64 = 1;
const VALUE: u64 = 2;
const BOOL_FIELD: u64 = 2;
const INT_FIELD: u64 = 3;

/// The value of a flag of XLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    Is(bool),
    Number(u64),
}

/// The options for one device of any number, with these flags of XLA.
pub(super) fn compile_options(flags: &[(&str, Flag)]) -> Vec<u8> {
    let mut build = vec![];
    // −1 stands for the default device.
    number(&mut build, DEVICE_ORDINAL, u64::MAX);
    number(&mut build, NUM_REPLICAS, 1);
    number(&mut build, NUM_PARTITIONS, 1);
    let mut options = vec![];
    bytes(&mut options, BUILD_OPTIONS, &build);
    for (name, value) in flags {
        let mut set = vec![];
        match value {
            Flag::Is(on) => number(&mut set, BOOL_FIELD, u64::from(*on)),
            Flag::Number(n) => number(&mut set, INT_FIELD, *n),
        }
        let mut entry = vec![];
        bytes(&mut entry, KEY, name.as_bytes());
        bytes(&mut entry, VALUE, &set);
        bytes(&mut options, OVERRIDES, &entry);
    }
    options
}

fn varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn number(out: &mut Vec<u8>, field: u64, v: u64) {
    varint(out, field << 3);
    varint(out, v);
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_written_as_protocol_buffers_have_them() {
        // The examples of the encoding's documentation: 150 in field 1, "testing" in field 2.
        let mut out = vec![];
        number(&mut out, 1, 150);
        bytes(&mut out, 2, b"testing");
        assert_eq!(out, [0x08, 0x96, 0x01, 0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
    }
}
