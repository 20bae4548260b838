//! Bytes of tokens as pieces of text: whole characters only, and nothing that may turn out to be the beginning of a text before
//! which to stop.

/// Text on its way out.
pub struct TextStream {
    stops: Vec<String>,
    /// Bytes that are no whole character yet.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop.
    held: String,
    is_stopped: bool,
}

impl TextStream {
    /// Stops before any of these texts; empty ones stop nothing.
    pub fn new(stops: &[String]) -> TextStream {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        TextStream { stops, bytes: Vec::new(), held: String::new(), is_stopped: false }
    }

    /// Takes bytes, and gives the text that is certain, which may be empty.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.bytes.extend_from_slice(bytes);
        let mut done = 0;
        while let Err(error) = std::str::from_utf8(&self.bytes[done..]) {
            let good = done + error.valid_up_to();
            self.held.push_str(&String::from_utf8_lossy(&self.bytes[done..good]));
            done = good;
            // None: the bytes end inside a character, which may be completed.
            let Some(n_bad) = error.error_len() else { break };
            self.held.push(char::REPLACEMENT_CHARACTER);
            done += n_bad;
        }
        if let Ok(rest) = std::str::from_utf8(&self.bytes[done..]) {
            self.held.push_str(rest);
            done = self.bytes.len();
        }
        self.bytes.drain(..done);
        self.release()
    }

    /// What is left when there is no more to come.
    pub fn finish(&mut self) -> String {
        if self.is_stopped {
            return String::new();
        }
        let rest = String::from_utf8_lossy(&self.bytes).into_owned();
        self.bytes.clear();
        self.held.push_str(&rest);
        let text = self.release();
        text + &std::mem::take(&mut self.held)
    }

    /// Whether a stop has come.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The text up to a stop, or up to where one may begin.
    fn release(&mut self) -> String {
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.is_stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let keep = starts.into_iter().find(may_begin).unwrap_or(self.held.len());
        let kept = self.held.split_off(keep);
        std::mem::replace(&mut self.held, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stops: &[&str], pushed: &[&[u8]], expect: &[&str], rest: &str) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut stream = TextStream::new(&stops);
        let pieces: Vec<String> = pushed.iter().map(|bytes| stream.push(bytes)).collect();
        assert_eq!(
            (pieces.iter().map(|piece| &**piece).collect::<Vec<_>>(), &*stream.finish()),
            (expect.to_vec(), rest)
        );
    }

    #[test]
    fn pieces_are_whole_characters() {
        check(&[], &[b"a", "世".as_bytes(), b"b"], &["a", "世", "b"], "");
        check(&[], &[&[0xe4, 0xb8], &[0x96, b'!']], &["", "世!"], "");
        check(&[], &[&[0xf0, 0x9f], &[0x98], &[0x80]], &["", "", "\u{1f600}"], "");
        // Bytes that can never become a character are replaced, one for each.
        check(&[], &[&[0xff, b'a'], &[0xe4, b'b']], &["\u{fffd}a", "\u{fffd}b"], "");
        check(&[], &[&[0xe4, 0xb8]], &[""], "\u{fffd}");
    }

    #[test]
    fn stops_are_seen_across_pieces_and_left_out() {
        check(&["END"], &[b"one E", b"N", b"D two", b"three"], &["one ", "", "", ""], "");
        check(&["END"], &[b"one E", b"x"], &["one ", "Ex"], "");
        check(&["END"], &[b"one EN"], &["one "], "EN");
        check(&["\n\n", "\nUser:"], &[b"a\n", b"User", b"?"], &["a", "", "\nUser?"], "");
        check(&["b", "abc"], &[b"xab"], &["xa"], "");
        check(&[""], &[b"a"], &["a"], "");
    }
}
