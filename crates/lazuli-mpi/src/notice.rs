//! Small messages between ranks beside collectives: signs of life, and word of who cannot go on. As bytes and back; knows no MPI.

/// What one rank tells another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// All that the sender knows of who is alive.
    Signs(Vec<u8>),
    /// A rank cannot go on, and why.
    Failed { rank: usize, text: String },
    /// A rank is done, while others may not be.
    Left { rank: usize },
    /// After a failure: a rank has said what it had to say.
    Closed { rank: usize },
}

/// The longest text of an error that travels; more of it is on the rank's own standard error.
const TEXT_BYTES: usize = 4000;
/// Kind, rank and length.
const HEAD_BYTES: usize = 12;

impl Notice {
    /// The longest notice among so many ranks.
    pub fn most_bytes(n_ranks: usize) -> usize {
        HEAD_BYTES + TEXT_BYTES.max(16 * n_ranks)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (kind, rank, body): (u32, usize, &[u8]) = match self {
            Notice::Signs(signs) => (1, 0, signs),
            Notice::Failed { rank, text } => (2, *rank, short(text).as_bytes()),
            Notice::Left { rank } => (3, *rank, &[]),
            Notice::Closed { rank } => (4, *rank, &[]),
        };
        let head = [kind, rank as u32, body.len() as u32].map(u32::to_le_bytes);
        head.as_flattened().iter().chain(body).copied().collect()
    }

    /// What bytes say, after which there may be more; None if they are no notice.
    pub fn read(bytes: &[u8]) -> Option<Notice> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let [kind, rank, len] = [0, 4, 8].map(|at| head[at..at + 4].try_into().map_or(0, u32::from_le_bytes) as usize);
        let body = rest.get(..len)?;
        match kind {
            1 => Some(Notice::Signs(body.to_vec())),
            2 => Some(Notice::Failed { rank, text: String::from_utf8_lossy(body).into_owned() }),
            3 => Some(Notice::Left { rank }),
            4 => Some(Notice::Closed { rank }),
            _ => None,
        }
    }
}

/// As much of a text as travels, cut between characters.
fn short(text: &str) -> &str {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_as_they_were() {
        let long = "ü".repeat(3000);
        let cut = long[..TEXT_BYTES].to_string();
        for (notice, expect) in [
            (Notice::Signs(vec![7; 64]), Notice::Signs(vec![7; 64])),
            (Notice::Failed { rank: 3, text: "no room".into() }, Notice::Failed { rank: 3, text: "no room".into() }),
            (Notice::Failed { rank: 0, text: long.clone() }, Notice::Failed { rank: 0, text: cut }),
            (Notice::Left { rank: 999 }, Notice::Left { rank: 999 }),
            (Notice::Closed { rank: 1 }, Notice::Closed { rank: 1 }),
        ] {
            let mut bytes = notice.bytes();
            assert!(bytes.len() <= Notice::most_bytes(4));
            bytes.resize(Notice::most_bytes(4), 0);
            assert_eq!(Notice::read(&bytes), Some(expect));
        }
        assert_eq!((Notice::read(&[]), Notice::read(&[0; 20])), (None, None));
        assert_eq!(Notice::read(&[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1]), None);
    }
}
