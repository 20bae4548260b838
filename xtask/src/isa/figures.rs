//! From machine code to figures: what kind an instruction is, which loops there are, which of them is hot, and what that
//! one consists of. Knows AMD's instruction names from GCN to RDNA3; no driver, no files.

use super::listing::{Block, Pipeline};

/// What is told of one kernel.
#[derive(Debug, PartialEq)]
pub struct Figures {
    pub vgprs: u64,
    pub sgprs: u64,
    /// Waves that one SIMD unit can hold at a time.
    pub waves: u64,
    /// Registers that were spilled, and bytes of memory used in place of registers.
    pub spills: u64,
    /// Workgroup memory in bytes.
    pub lds: u64,
    /// Instructions that wait for the whole workgroup.
    pub barriers: u64,
    pub instructions: u64,
    /// Multiply-adds among the instructions of the hottest loop, in per cent; of everything, if there is no loop.
    pub fma_percent: u64,
    /// All multiply-adds and all instructions of that loop; and those around it, of the innermost loop that it is in, without
    /// those of other loops inside.
    pub hot: Share,
    pub around: Share,
    /// Bytes that a load instruction brings to one invocation, on average, in the same place.
    pub bytes_per_load: f64,
}

/// How many of some instructions are multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    pub n_fma: u64,
    pub n: u64,
}

impl Figures {
    /// Multiply-adds in per cent of all that is run, if the hottest loop goes round so often for every time that the one around it
    /// does: sums in blocks are added to others after every block.
    pub fn fma_percent_of_blocks(&self, n_trips: u64) -> f64 {
        let all = |of: fn(&Share) -> u64| (n_trips * of(&self.hot) + of(&self.around)) as f64;
        100.0 * all(|share| share.n_fma) / all(|share| share.n).max(1.0)
    }

    /// The figures of a kernel.
    pub fn of(pipeline: &Pipeline) -> Result<Figures, String> {
        let [hot, around] = hottest(&pipeline.blocks);
        let all = Counts::of(&pipeline.blocks);
        let loads = if hot.n_loads > 0 { &hot } else { &all };
        let stat = |name: &str| pipeline.stat(name);
        Ok(Figures {
            vgprs: stat("VGPRs")?,
            sgprs: stat("SGPRs")?,
            waves: stat("Subgroups per SIMD")?,
            spills: stat("Spilled VGPRs")? + stat("Spilled SGPRs")? + stat("Scratch size")?,
            lds: stat("LDS size")?,
            barriers: all.n_barriers,
            instructions: stat("Instructions")?,
            fma_percent: (100 * hot.n_fma + hot.n / 2).checked_div(hot.n).unwrap_or(0),
            hot: hot.share(),
            around: around.share(),
            bytes_per_load: loads.load_bytes as f64 / loads.n_loads.max(1) as f64,
        })
    }
}

/// What a piece of code consists of.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    n: u64,
    n_fma: u64,
    n_loads: u64,
    load_bytes: u64,
    n_barriers: u64,
}

impl Counts {
    fn share(&self) -> Share {
        Share { n_fma: self.n_fma, n: self.n }
    }

    fn of<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Counts {
        let mut counts = Counts::default();
        for instruction in blocks.into_iter().flat_map(|block| &block.instructions) {
            // RDNA3 writes two instructions that issue together as one: `v_dual_fmac_f32 … :: v_dual_mul_f32 …`.
            for half in instruction.split("::") {
                let op = half.split_whitespace().next().unwrap_or_default();
                counts.n += 1;
                counts.n_fma += is_fma(op) as u64;
                counts.n_barriers += (op == "s_barrier") as u64;
                if let Some(n_bytes) = load_bytes(op) {
                    counts.n_loads += 1;
                    counts.load_bytes += n_bytes;
                }
            }
        }
        counts
    }
}

/// Whether an instruction multiplies and adds floats.
fn is_fma(op: &str) -> bool {
    let Some(op) = op.strip_prefix("v_") else { return false };
    let op = op.trim_start_matches("dual_").trim_start_matches("pk_");
    let is_float = op.contains("f32") || op.contains("f16");
    is_float && ["fma", "mad_", "madmk", "madak", "mac_", "dot2"].iter().any(|start| op.starts_with(start))
}

/// How many bytes a load from memory brings to one invocation; None for other instructions. Scalar loads, which bring
/// sizes and addresses for all invocations at once, are none.
fn load_bytes(op: &str) -> Option<u64> {
    let what = ["buffer_load_", "global_load_", "flat_load_"].iter().find_map(|start| op.strip_prefix(start))?;
    // GCN and RDNA2 say `dwordx4`, RDNA3 says `b128`.
    let sizes = [
        ("dwordx4", 16),
        ("b128", 16),
        ("dwordx3", 12),
        ("b96", 12),
        ("dwordx2", 8),
        ("b64", 8),
        ("dword", 4),
        ("b32", 4),
        ("short", 2),
        ("16", 2),
    ];
    Some(sizes.iter().find(|(word, _)| what.contains(word)).map_or(1, |(_, n_bytes)| *n_bytes))
}

/// What the loop consists of whose own instructions, without those of loops inside, have most multiply-adds, or most
/// instructions where there are none; and the own instructions of the loop around it. How often a loop runs is not known, so
/// that this is where a kernel does its work, not where it spends its time. All instructions, if there is no loop.
fn hottest(blocks: &[Block]) -> [Counts; 2] {
    let loops = loops(blocks);
    let own = |(head, tail): (usize, usize)| {
        // The innermost loop around a block is the one that begins last.
        let is_own = |at: &usize| loops.iter().rfind(|(h, t)| (*h..=*t).contains(at)) == Some(&(head, tail));
        Counts::of((head..=tail).filter(is_own).map(|at| &blocks[at]))
    };
    let most = |found: &&(usize, usize)| {
        let counts = own(**found);
        (counts.n_fma, counts.n)
    };
    let Some(&(head, tail)) = loops.iter().max_by_key(most) else { return [Counts::of(blocks), Counts::default()] };
    let around = loops.iter().rfind(|(h, t)| *h < head && tail <= *t);
    [Counts::of(&blocks[head..=tail]), around.map_or(Counts::default(), |around| own(*around))]
}

/// Every loop, from its head to the last block that jumps back there, by place; heads ascend.
fn loops(blocks: &[Block]) -> Vec<(usize, usize)> {
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        for target in block.instructions.iter().filter_map(|instruction| jump(instruction)) {
            let Some(head) = blocks.iter().position(|block| block.number == target).filter(|head| *head <= at) else {
                continue;
            };
            match loops.iter_mut().find(|(h, _)| *h == head) {
                Some((_, tail)) => *tail = at.max(*tail),
                None => loops.push((head, at)),
            }
        }
    }
    loops.sort_unstable();
    loops
}

/// Where an instruction jumps to: `s_cbranch_scc1 BB12`.
fn jump(instruction: &str) -> Option<usize> {
    let (op, target) = instruction.split_once(' ')?;
    let is_jump = op.starts_with("s_cbranch") || op == "s_branch";
    target.trim().strip_prefix("BB").filter(|_| is_jump)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::listing::Listing;

    fn block(number: usize, instructions: &[&str]) -> Block {
        Block { number, instructions: instructions.iter().map(|text| text.to_string()).collect() }
    }

    #[test]
    fn multiply_adds_of_every_generation_are_known() {
        let are = [
            "v_fma_f32",
            "v_fmac_f32_e32",
            "v_mac_f32_e32",
            "v_mad_f32",
            "v_fmaak_f32",
            "v_pk_fma_f16",
            "v_dual_fmac_f32",
        ];
        let are_not = ["v_mad_u32_u24", "v_mul_f32_e32", "v_add_f32_e32", "v_fma_f64", "s_mul_i32", "v_mad_u64_u32"];
        assert!(are.iter().all(|op| is_fma(op)));
        assert!(!are_not.iter().any(|op| is_fma(op)));
    }

    #[test]
    fn loads_bring_what_their_names_say() {
        let known = [
            ("buffer_load_dwordx4", Some(16)),
            ("buffer_load_b128", Some(16)),
            ("global_load_dwordx2", Some(8)),
            ("buffer_load_dword", Some(4)),
            ("buffer_load_ushort", Some(2)),
            ("buffer_load_u16", Some(2)),
            ("buffer_load_ubyte", Some(1)),
            ("s_load_dwordx4", None),
            ("ds_read_b128", None),
        ];
        known.iter().for_each(|(op, n_bytes)| assert_eq!(load_bytes(op), *n_bytes, "{op}"));
    }

    #[test]
    fn the_hottest_loop_is_where_the_multiply_adds_are() {
        // A loop over tiles (1 to 4) with one that loads (2) and the multiply-adds after it; then one that stores (5).
        let blocks = [
            block(0, &["s_mov_b32 s0, 0"]),
            block(1, &["v_mov_b32 v0, 0"]),
            block(2, &["buffer_load_dwordx4 v[0:3]", "ds_write_b128 v0", "s_cbranch_scc1 BB2"]),
            block(4, &["v_fmac_f32 v0, v1, v2", "v_fmac_f32 v3, v1, v2", "s_cbranch_scc1 BB1"]),
            block(5, &["v_add_f32 v0, v0, v0", "v_add_f32 v0, v0, v0", "v_add_f32 v0, v0, v0", "s_branch BB5"]),
            block(6, &["s_endpgm"]),
        ];
        assert_eq!(loops(&blocks), [(1, 3), (2, 2), (4, 4)]);
        let hot = Counts { n: 7, n_fma: 2, n_loads: 1, load_bytes: 16, n_barriers: 0 };
        assert_eq!(hottest(&blocks), [hot, Counts::default()]);
    }

    #[test]
    fn what_is_around_the_hottest_loop_counts_once_for_all_of_its_trips() {
        // Blocks of k (1 to 3), their steps (2), which are followed by their sums.
        let blocks = [
            block(0, &["s_mov_b32 s0, 0"]),
            block(1, &["v_mov_b32 v0, 0"]),
            block(
                2,
                &["v_fmac_f32 v0, v1, v2", "v_fmac_f32 v0, v1, v2", "v_fmac_f32 v0, v1, v2", "s_cbranch_scc1 BB2"],
            ),
            block(3, &["v_add_f32 v3, v3, v0", "v_add_f32 v3, v3, v0", "s_cbranch_scc1 BB1"]),
            block(4, &["s_endpgm"]),
        ];
        let [hot, around] = hottest(&blocks).map(|counts| counts.share());
        assert_eq!([hot, around], [Share { n_fma: 3, n: 4 }, Share { n_fma: 0, n: 4 }]);
        let figures = |hot, around| Figures {
            vgprs: 0,
            sgprs: 0,
            waves: 0,
            spills: 0,
            lds: 0,
            barriers: 0,
            instructions: 0,
            fma_percent: 75,
            hot,
            around,
            bytes_per_load: 0.0,
        };
        // 48 of 64 + 4 instructions.
        assert_eq!(figures(hot, around).fma_percent_of_blocks(16), 4800.0 / 68.0);
        assert_eq!(figures(hot, Share::default()).fma_percent_of_blocks(16), 75.0);
    }

    /// Two kernels as RADV of Mesa 22.3.6 wrote them for an RDNA2 GPU, without the intermediate forms.
    #[test]
    fn what_a_driver_wrote_is_understood() {
        let listing = Listing::read(include_str!("../../isa/sample.txt")).unwrap();
        assert_eq!(listing.driver, "radv Mesa 22.3.6");
        let dispatched: Vec<_> = listing.cases.iter().map(|case| (&*case.name, case.dispatches.len())).collect();
        assert_eq!(dispatched, [("chain of 3, 16 Mi", 1), ("1×1536²", 2)]);
        assert_eq!(listing.cases[0].dispatches[0].n_groups, 16_384);
        let [chain, gemv] = [0, 1].map(|case: usize| &listing.pipelines[&listing.cases[case].dispatches[0].pipeline]);
        assert_eq!(chain.name, "map_add_mul_sub_f32");
        let expected = Figures {
            vgprs: 16,
            sgprs: 128,
            waves: 32,
            spills: 0,
            lds: 0,
            barriers: 0,
            instructions: 52,
            fma_percent: 0,
            hot: Share { n_fma: 0, n: 52 },
            around: Share::default(),
            bytes_per_load: 16.0,
        };
        assert_eq!(Figures::of(chain).unwrap(), expected);
        // The compiler counts what is read here, too.
        let n_read = |pipeline: &Pipeline| Counts::of(&pipeline.blocks).n;
        assert_eq!((n_read(chain), n_read(gemv)), (52, 207));
        assert_eq!(Figures::of(gemv).unwrap().waves, 24);
        assert!(Figures::of(gemv).unwrap().fma_percent > 0);
    }
}
