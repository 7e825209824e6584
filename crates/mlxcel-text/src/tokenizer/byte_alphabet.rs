//! The GPT-2 byte alphabet: every byte as one printable character, so that a byte-level vocabulary can be
//! written as text. Printable Latin-1 bytes stand for themselves, the others are numbered from U+0100 on.

/// Appends the alphabet's spelling of `bytes`.
pub(super) fn spell(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| ALPHABET.spelling[usize::from(byte)]));
}

/// The byte a character of the alphabet stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    ALPHABET.byte.get(c as usize).copied().flatten()
}

const FIRST_NUMBERED: u32 = 0x100;
/// 68 bytes are not printable Latin-1.
const NUMBERED: usize = 68;

struct Alphabet {
    spelling: [char; 256],
    byte: [Option<u8>; FIRST_NUMBERED as usize + NUMBERED],
}

static ALPHABET: Alphabet = build();

const fn build() -> Alphabet {
    let mut alphabet = Alphabet { spelling: ['\0'; 256], byte: [None; FIRST_NUMBERED as usize + NUMBERED] };
    let mut next = FIRST_NUMBERED;
    let mut byte = 0usize;
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        alphabet.spelling[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("every code below U+0200 is a character"),
        };
        alphabet.byte[code as usize] = Some(byte as u8);
        byte += 1;
    }
    alphabet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_being_spelled() {
        for byte in 0..=255u8 {
            let mut text = String::new();
            spell(&[byte], &mut text);
            let c = text.chars().next().expect("one character");
            assert_eq!(byte_of(c), Some(byte));
        }
    }

    #[test]
    fn blanks_have_their_known_spellings() {
        let mut text = String::new();
        spell(b" \n\ta\xc3", &mut text);
        assert_eq!(text, "\u{120}\u{10a}\u{109}a\u{c3}");
    }

    #[test]
    fn characters_outside_the_alphabet_are_no_bytes() {
        for c in [' ', '\n', '\u{ad}', '\u{144}', '▁', '字'] {
            assert_eq!(byte_of(c), None);
        }
    }
}
