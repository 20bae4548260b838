//! As much JSON as a header needs: objects, arrays, strings and whole numbers. Reads what is there once, from front to
//! back, allocates only what it has read, and goes no deeper than headers do.

/// A value of a header.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// In the order of the file; a key that comes twice is an error.
    Object(Vec<(String, Json)>),
    Array(Vec<Json>),
    Text(String),
    Number(u64),
}

/// How deep values may be nested.
const DEPTH: usize = 8;
/// How many items an array may have. The longest arrays of headers are shapes; without a bound an array of digits would
/// take many times the memory of its text.
const MAX_ITEMS: usize = 64;

/// Reads a whole text.
pub fn parse(text: &str) -> Result<Json, String> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(DEPTH)?;
    reader.space();
    match reader.at == text.len() {
        true => Ok(value),
        false => Err(reader.fault("the end")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fault(&self, wanted: &str) -> String {
        format!("byte {} of the header is not {wanted}", self.at)
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        self.space();
        if self.peek() != Some(byte) {
            return Err(self.fault(&format!("`{}`", byte as char)));
        }
        self.at += 1;
        Ok(())
    }

    /// Whether this byte comes next; it is then taken.
    fn takes(&mut self, byte: u8) -> bool {
        self.space();
        let is = self.peek() == Some(byte);
        self.at += is as usize;
        is
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth == 0 {
            return Err("the header is nested too deeply".into());
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth - 1),
            Some(b'[') => self.array(depth - 1),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'0'..=b'9') => self.number(),
            _ => Err(self.fault("the start of an object, an array, a string or a whole number")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        self.expect(b'{')?;
        let mut entries: Vec<(String, Json)> = Vec::new();
        let mut keys = std::collections::HashSet::new();
        if self.takes(b'}') {
            return Ok(Json::Object(entries));
        }
        loop {
            self.space();
            let key = self.string()?;
            if !keys.insert(key.clone()) {
                return Err(format!("the key {key:?} comes twice"));
            }
            self.expect(b':')?;
            entries.push((key, self.value(depth)?));
            if !self.takes(b',') {
                self.expect(b'}')?;
                return Ok(Json::Object(entries));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, String> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        if self.takes(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            if items.len() == MAX_ITEMS {
                return Err(format!("an array of the header has more than {MAX_ITEMS} items"));
            }
            items.push(self.value(depth)?);
            if !self.takes(b',') {
                self.expect(b']')?;
                return Ok(Json::Array(items));
            }
        }
    }

    fn number(&mut self) -> Result<Json, String> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(format!("{digits} is not a number: it begins with 0"));
        }
        digits.parse().map(Json::Number).map_err(|_| format!("{digits} is too large a number"))
    }

    fn string(&mut self) -> Result<String, String> {
        if self.peek() != Some(b'"') {
            return Err(self.fault("a string"));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(next) = rest.chars().next() else { return Err("the header ends inside a string".into()) };
            self.at += next.len_utf8();
            match next {
                '"' => return Ok(out),
                '\\' => out.push(self.escaped()?),
                c if (c as u32) < 0x20 => return Err(self.fault("allowed in a string")),
                c => out.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let Some(letter) = self.peek() else { return Err("the header ends inside a string".into()) };
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let first = self.unit()?;
                // A character beyond 16 bits is written as two halves, the high one first.
                let code = match first {
                    0xd800..0xdc00 => 0x10000 + ((first - 0xd800) << 10) + self.low_half(first)?,
                    code => code,
                };
                char::from_u32(code).ok_or_else(|| format!("\\u{first:04x} is half a character"))?
            }
            _ => return Err(self.fault("after a known escape")),
        })
    }

    /// What the low half that must follow a high one adds to it.
    fn low_half(&mut self, high: u32) -> Result<u32, String> {
        let half = || format!("\\u{high:04x} is half a character: the other half does not follow");
        if !self.text[self.at..].starts_with("\\u") {
            return Err(half());
        }
        self.at += 2;
        match self.unit()? {
            low @ 0xdc00..0xe000 => Ok(low - 0xdc00),
            _ => Err(half()),
        }
    }

    fn unit(&mut self) -> Result<u32, String> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| self.fault("four hex digits"))?;
        self.at += 4;
        Ok(code)
    }
}

/// A string as JSON writes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["", "plain", "with \"quotes\" and \\", "line\nbreak", "π𝄞"] {
            assert_eq!(parse(&quoted(text)), Ok(Json::Text(text.into())));
        }
        assert_eq!(parse(r#""\ud834\udd1e""#), Ok(Json::Text("𝄞".into())));
    }

    #[test]
    fn faults_are_found() {
        let faults = [
            ("", "byte 0 of the header is not the start"),
            ("{", "byte 1 of the header is not a string"),
            ("[1,]", "byte 3 of the header is not the start"),
            (r#"{"a":1,"a":2}"#, "the key \"a\" comes twice"),
            (r#"{"a":1,"\u0061":2}"#, "the key \"a\" comes twice"),
            ("1 2", "byte 2 of the header is not the end"),
            ("-1", "byte 0 of the header is not the start"),
            ("1e3", "byte 1 of the header is not the end"),
            ("007", "007 is not a number: it begins with 0"),
            ("99999999999999999999", "is too large a number"),
            (r#""\x""#, "after a known escape"),
            (r#""\u12g4""#, "not four hex digits"),
            (r#""\u+123""#, "not four hex digits"),
            (r#""\ud8""#, "not four hex digits"),
            ("\"\u{7}\"", "not allowed in a string"),
            ("\"a", "the header ends inside a string"),
            ("\"\\", "the header ends inside a string"),
        ];
        for (text, expect) in faults {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expect), "{text}: {error}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), Err("the header is nested too deeply".into()));
        assert_eq!(
            parse(&format!("[0{}]", ",0".repeat(64))),
            Err("an array of the header has more than 64 items".into())
        );
    }

    #[test]
    fn half_a_character_is_refused() {
        let halves = [
            // A high half alone, at the end, before another letter, before another escape, before what is no low half.
            r#""\ud834""#,
            r#""\ud834x""#,
            r#""\ud834\n""#,
            r#""\ud834\u0041""#,
            r#""\ud834\ud834""#,
            r#""\ud834\ue000""#,
            r#""\ud834\uffff""#,
            // A low half alone, and the two in the wrong order.
            r#""\udd1e""#,
            r#""\udd1e\ud834""#,
        ];
        for text in halves {
            let error = parse(text).expect_err(text);
            assert!(error.contains("is half a character"), "{text}: {error}");
        }
        // The first and the last characters that take two halves.
        assert_eq!(parse(r#""\ud800\udc00\udbff\udfff""#), Ok(Json::Text("\u{10000}\u{10ffff}".into())));
    }
}
