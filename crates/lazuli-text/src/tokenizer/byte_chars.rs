//! The alphabet of byte-level BPE: every byte is a printable character, so that vocabularies are text. Bytes that print
//! themselves in Latin-1 are themselves; the others are characters from U+0100 on, in order.

/// The character that stands for a byte.
pub fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte as char,
        _ => {
            let n_before = (0..byte).filter(|b| !prints_itself(*b)).count() as u32;
            // At most 67 bytes do not print themselves, so this is far below the surrogates.
            char::from_u32(0x100 + n_before).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}

/// The byte that a character stands for; None if it stands for none.
pub fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ 0..=0xff if prints_itself(code as u8) => Some(code as u8),
        code @ 0x100..=0x143 => (0..=255u8).filter(|b| !prints_itself(*b)).nth(code as usize - 0x100),
        _ => None,
    }
}

fn prints_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        // As GPT-2's vocabulary has them: a space, a line feed, a tab.
        assert_eq!([b' ', b'\n', b'\t'].map(char_of), ['Ġ', 'Ċ', 'ĉ']);
        assert_eq!((byte_of(' '), byte_of('世')), (None, None));
    }
}
