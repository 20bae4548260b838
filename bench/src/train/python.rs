//! PyTorch and JAX in a process of their own, which makes as many steps as it is told and says what they took: so they
//! take turns with everyone else. `python/train_peers.py` is the other end; each line is one request or answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::contender::Result;

/// The other process; it ends when this is dropped.
pub struct Python {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    /// Starts the script with an interpreter that has the peers, and asks which they are.
    pub fn start(interpreter: &str, n_threads: usize) -> Result<(Python, Vec<String>)> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_peers.py");
        let mut child = Command::new(interpreter)
            .args([script, "--threads", &n_threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{interpreter}: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or("the process has no pipes")?;
        let mut python = Python { child, requests, answers: BufReader::new(answers) };
        let peers = python.answer()?.split_whitespace().map(String::from).collect();
        Ok((python, peers))
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
            Ok(0) => Err("the Python process ended".into()),
            Ok(_) => Ok(line.trim().into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
