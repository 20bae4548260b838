//! Libraries of other languages in a process of their own, which makes as many steps as it is told and says what they
//! took: so they take turns with everyone else. `python/train_peers.py` and `js/train_peers.mjs` are the other end; each
//! line is one request or answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::contender::Result;

/// The other process; it ends when this is dropped.
pub struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a command, words with spaces between, and asks which peers it has.
    pub fn start(command: &str, n_threads: usize) -> Result<(Process, Vec<String>)> {
        let mut words = command.split_whitespace();
        let mut child = Command::new(words.next().ok_or("the command of the peers is empty")?)
            .args(words)
            .args(["--threads", &n_threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{command}: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or("the process has no pipes")?;
        let mut process = Process { child, requests, answers: BufReader::new(answers) };
        let peers = process.answer()?.split_whitespace().map(String::from).collect();
        Ok((process, peers))
    }

    /// Asks a peer for steps: wall and CPU milliseconds of all of them, and the last loss.
    pub fn steps(&mut self, peer: &str, net: &str, n_steps: usize) -> Result<[f64; 3]> {
        writeln!(self.requests, "{peer} {} {n_steps}", &net[..3]).map_err(|error| error.to_string())?;
        let answer = self.answer()?;
        let numbers: Vec<f64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| format!("{peer}: {answer}"))
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err("the process of the peers ended".into()),
            Ok(_) => Ok(line.trim().into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
