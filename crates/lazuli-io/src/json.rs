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
                // A character beyond 16 bits is written as two halves.
                let code = match first {
                    0xd800..0xdc00 if self.text[self.at..].starts_with("\\u") => {
                        self.at += 2;
                        let second = self.unit()?;
                        0x10000 + ((first - 0xd800) << 10) + second.wrapping_sub(0xdc00)
                    }
                    code => code,
                };
                char::from_u32(code).ok_or_else(|| self.fault("after a character"))?
            }
            _ => return Err(self.fault("after a known escape")),
        })
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
        for text in
            ["", "{", "[1,]", r#"{"a":1,"a":2}"#, "1 2", "-1", "1e3", r#""\x""#, r#""\ud834""#, "99999999999999999999"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
