//! What the driver wrote about the kernels it compiled, as data: per pipeline the compiler's statistics and the machine
//! code in basic blocks, per case which pipelines were dispatched. Knows the text that RADV writes when
//! `RADV_DEBUG=shaders,shaderstats` asks for it, and the lines that `xtask/isa/null_device.c` and the program put between.

use std::collections::BTreeMap;

/// All that one run of the program showed.
#[derive(Debug, Default)]
pub struct Listing {
    /// The driver and its version, as the program tells it.
    pub driver: String,
    /// What the engine goes by on this device, a line each.
    pub target: Vec<String>,
    pub pipelines: BTreeMap<usize, Pipeline>,
    pub cases: Vec<Case>,
}

/// A compiled kernel.
#[derive(Debug, Default)]
pub struct Pipeline {
    pub name: String,
    /// The compiler's own figures, by the names it gives them.
    pub stats: BTreeMap<String, u64>,
    pub blocks: Vec<Block>,
}

/// Instructions without a jump into them, by the number that jumps name.
#[derive(Debug)]
pub struct Block {
    pub number: usize,
    pub instructions: Vec<String>,
}

/// What was dispatched for one case.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub dispatches: Vec<Dispatch>,
}

/// One dispatch: of which pipeline, and how many workgroups.
#[derive(Debug)]
pub struct Dispatch {
    pub pipeline: usize,
    pub n_groups: u64,
}

/// Where the reader is inside of what the driver writes about one pipeline.
#[derive(PartialEq)]
enum Part {
    /// Before the machine code: intermediate forms, which nobody reads.
    Before,
    Code,
    Stats,
}

impl Listing {
    /// Reads the text. What it does not know it passes over, since drivers write more than is needed.
    pub fn read(text: &str) -> Result<Listing, String> {
        let mut listing = Listing::default();
        let (mut current, mut part) = (None, Part::Before);
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "DEVICE" => listing.driver = rest.to_string(),
                "TARGET" => listing.target.push(rest.to_string()),
                "CASE" => listing.cases.push(Case { name: rest.to_string(), dispatches: Vec::new() }),
                "PIPELINE" => (current, part) = (Some(number(rest)?), Part::Before),
                "NAME" => {
                    let (at, name) = rest.split_once(' ').unwrap_or((rest, ""));
                    listing.pipelines.entry(number(at)?).or_default().name = name.to_string();
                }
                "DISPATCH" => {
                    let (at, n_groups) = rest.split_once(' ').unwrap_or((rest, ""));
                    let dispatch = Dispatch { pipeline: number(at)?, n_groups: number(n_groups)? as u64 };
                    let case = listing.cases.last_mut().ok_or(format!("`{line}` outside of any case"))?;
                    case.dispatches.push(dispatch);
                }
                _ => {
                    if let Some(at) = current {
                        listing.pipelines.entry(at).or_default().line(line, &mut part);
                    }
                }
            }
        }
        Ok(listing)
    }
}

impl Pipeline {
    /// Takes in a line that the driver wrote.
    fn line(&mut self, line: &str, part: &mut Part) {
        if line == "disasm:" {
            *part = Part::Code;
            self.blocks.clear();
        } else if line.starts_with("*** SHADER STATS") {
            *part = Part::Stats;
        } else if *part == Part::Code {
            self.code(line);
        } else if *part == Part::Stats
            && let Some((name, value)) = line.split_once(": ")
            && let Ok(value) = value.parse()
        {
            self.stats.insert(name.to_string(), value);
        }
    }

    /// `BB3:` opens a block; an instruction is indented, and its encoding follows a semicolon.
    fn code(&mut self, line: &str) {
        let block = line.strip_prefix("BB").and_then(|rest| rest.strip_suffix(':')).and_then(|n| n.parse().ok());
        if let Some(number) = block {
            self.blocks.push(Block { number, instructions: Vec::new() });
            return;
        }
        let (Some(block), true) = (self.blocks.last_mut(), line.starts_with('\t')) else { return };
        let instruction = line.split(';').next().unwrap_or_default().trim();
        match repeats(instruction) {
            Some(n) => {
                let before = block.instructions.last().cloned();
                block.instructions.extend(before.into_iter().cycle().take(n));
            }
            None if instruction.is_empty() => {}
            None => block.instructions.push(instruction.to_string()),
        }
    }

    /// One of the compiler's figures; none that it did not tell.
    pub fn stat(&self, name: &str) -> Result<u64, String> {
        let told = self.stats.get(name).copied();
        told.ok_or_else(|| {
            format!("the driver tells no `{name}` of {}", if self.name.is_empty() { "a kernel" } else { &self.name })
        })
    }
}

/// How often more, where the driver writes an instruction once: `(then repeated 7 times)`.
fn repeats(instruction: &str) -> Option<usize> {
    instruction.strip_prefix("(then repeated ")?.split(' ').next()?.parse().ok()
}

fn number(word: &str) -> Result<usize, String> {
    word.trim().parse().map_err(|_| format!("`{word}` is no number in what the driver wrote"))
}
