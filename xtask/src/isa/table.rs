//! The table of kernels: a row for each kernel of each case and family, its text, and what must hold of it. The text is kept
//! in a file for each version of Mesa, and compared exactly; bounds hold with any version.

use super::figures::Figures;
use super::listing::Listing;

/// One kernel of a case, as compiled for a family.
#[derive(Debug)]
pub struct Row {
    pub case: String,
    pub kernel: String,
    pub figures: Figures,
    /// How often it is dispatched, and workgroups of all those dispatches.
    pub n_dispatches: u64,
    pub n_groups: u64,
}

/// The rows of a listing, in the order in which they are dispatched first.
pub fn rows(listing: &Listing) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for case in &listing.cases {
        let mut numbers: Vec<usize> = Vec::new();
        case.dispatches.iter().for_each(|d| {
            if !numbers.contains(&d.pipeline) {
                numbers.push(d.pipeline);
            }
        });
        if numbers.is_empty() {
            return Err(format!("{}: nothing was dispatched", case.name));
        }
        for number in numbers {
            let pipeline = listing.pipelines.get(&number).ok_or(format!("{}: an unknown pipeline", case.name))?;
            let of_it = || case.dispatches.iter().filter(|d| d.pipeline == number);
            rows.push(Row {
                case: case.name.clone(),
                kernel: pipeline.name.clone(),
                figures: Figures::of(pipeline)?,
                n_dispatches: of_it().count() as u64,
                n_groups: of_it().map(|d| d.n_groups).sum(),
            });
        }
    }
    Ok(rows)
}

/// The text of a family's rows.
pub fn text(family: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "{family:<28} {:<49} {:>4} {:>4} {:>5} {:>6} {:>6} {:>4} {:>6} {:>4} {:>6} {:>4} {:>7}\n",
        "kernel", "vgpr", "sgpr", "waves", "spills", "lds", "barr", "instrs", "fma%", "B/load", "runs", "groups",
    );
    for row in rows {
        let Figures { vgprs, sgprs, waves, spills, lds, barriers, instructions, fma_percent, bytes_per_load, .. } =
            row.figures;
        text += &format!(
            "{:<28} {:<49} {vgprs:>4} {sgprs:>4} {waves:>5} {spills:>6} {lds:>6} {barriers:>4} {instructions:>6} {fma_percent:>4} \
             {bytes_per_load:>6.1} {:>4} {:>7}\n",
            row.case, row.kernel, row.n_dispatches, row.n_groups,
        );
    }
    text
}

/// The least waves that a SIMD unit of each family must be able to hold: fewer hide fewer memory latencies. GCN holds at
/// most 10 (Polaris 8), RDNA at most 16, which counts as 32 of half the width.
const MIN_WAVES: &[(&str, u64)] =
    &[("GCN", 2), ("RDNA2", 8), ("RDNA2, waves of 32", 8), ("RDNA3", 8), ("RDNA3, waves of 32", 8)];

/// Cases that fold by subgroups, and how often their texts wait for the workgroup at most: never where one subgroup has all of a
/// row, once where sums of a product meet, four or five times in attention, for operands and weights.
const MAX_BARRIERS: &[(&str, u64)] = &[
    ("softmax 4096×1024", 0),
    ("layer_norm 4096×1024", 0),
    ("1×1536²", 1),
    ("1×1536², f16", 1),
    ("1×1536², W [n, k]", 1),
    ("1×1536², W [n, k] f16", 1),
    ("1×1536², W Q4_1", 1),
    ("1×1536², W Q8_0", 1),
    ("8×1536²", 1),
    ("8×1536², f16", 1),
    ("8×1536², W [n, k]", 1),
    ("8×1536², W [n, k] f16", 1),
    ("8×1536², W Q4_1", 1),
    ("8×1536², W Q8_0", 1),
    ("attention 12×512×64", 4),
    ("attention 12×512×64, causal", 5),
];

/// The least share of multiply-adds, in per cent, in the hottest loop of a case's kernels, in whichever of them has most.
/// A little below what Mesa 22.3.6 makes of them: these bounds hold with any version, and rise with what kernels gain.
const MIN_FMA_PERCENT: &[(&str, u64)] = &[
    ("256³", 58),
    // A long k is summed up in blocks, whose sums take registers: larger tiles would leave room for few waves.
    ("1024³", 72),
    ("1024³, bias, gelu", 72),
    ("1024³, W [n, k]", 65),
    ("1024³, aᵀ", 75),
    ("2048³", 72),
    // Single rows are as fast as memory is read.
    ("1×1536²", 26),
    ("1×1536², W [n, k]", 30),
    ("1×4096²", 26),
    ("1×4096², W [n, k]", 30),
    ("8×1536²", 60),
    ("8×1536², W [n, k]", 64),
    ("64×1536²", 70),
    ("64×1536², W [n, k]", 64),
    ("attention 12×512×64", 65),
    // Beside the products there is a loop that chooses weights away which a mask hides, for values that are not finite.
    ("attention 12×512×64, causal", 50),
    // Windows are read in place (implicit GEMM): the loop computes where they lie, and nothing copies them before it.
    ("conv 3×224² → 64 k7 s2", 60),
    ("conv 64×56² → 64 k3", 62),
    ("conv 64×56² → 256 k1", 72),
    ("conv 256×14² → 256 k3", 50),
    ("conv 512×7² → 512 k3", 68),
];

/// Products whose sums are made in blocks, and how often the loop over steps goes round in a block: 256 elements of k, 16 at a
/// time. What adds up blocks is counted against the multiply-adds, of which 65 per cent are wanted.
const SUMS_IN_BLOCKS: &[(&str, u64)] =
    &[("1024³", 16), ("1024³, bias, gelu", 16), ("1024³, W [n, k]", 16), ("1024³, aᵀ", 16), ("2048³", 16)];
const MIN_FMA_PERCENT_OF_BLOCKS: f64 = 65.0;

/// The least workgroups of a case's kernel that multiplies and adds most, so that a large GPU is busy: 500, or 16,384 invocations of them all, which
/// is what the numbers below come to. 64 invocations each, unless it is said how many.
const MIN_GROUPS: &[(&str, u64)] = &[
    // 256 invocations each.
    ("1024³", 128),
    ("2048³", 512),
    ("1×1536²", 64),
    ("1×1536², f16", 64),
    ("1×1536², W Q4_1", 64),
    ("1×1536², W Q8_0", 64),
    ("1×4096²", 64),
    ("1×4096², f16", 64),
    ("1×4096², W Q4_1", 64),
    ("1×4096², W Q8_0", 64),
    ("1×4096², W Q6_K", 64),
    ("8×1536²", 64),
    ("8×1536², f16", 64),
    ("8×1536², W Q4_1", 64),
    ("8×1536², W Q8_0", 64),
    ("1×1536², W [n, k]", 256),
    ("1×1536², W [n, k] f16", 256),
    ("1×4096², W [n, k]", 500),
    ("1×4096², W [n, k] f16", 500),
    ("8×1536², W [n, k]", 256),
    ("8×1536², W [n, k] f16", 256),
    // 128 invocations each.
    ("64×1536²", 200),
    ("64×1536², f16", 200),
    ("64×1536², W [n, k]", 200),
    ("64×1536², W [n, k] f16", 200),
    ("64×1536², W Q4_1", 200),
    ("64×1536², W Q8_0", 200),
];

/// Cases all of whose loads bring vectors of 16 bytes: few rows, which read a weight once. That neighbouring invocations read
/// neighbouring vectors is a test of the simulator in `wgsl/tests`.
const WHOLE_LOADS: &[&str] = &[
    "1×1536²",
    "1×1536², f16",
    "1×1536², W [n, k]",
    "1×1536², W [n, k] f16",
    "1×1536², W Q4_1",
    "1×1536², W Q8_0",
    "1×4096²",
    "1×4096², f16",
    "1×4096², W [n, k]",
    "1×4096², W [n, k] f16",
    "1×4096², W Q4_1",
    "1×4096², W Q8_0",
    "1×4096², W Q6_K",
    "8×1536²",
    "8×1536², f16",
    "8×1536², W [n, k]",
    "8×1536², W [n, k] f16",
    "8×1536², W Q4_1",
    "8×1536², W Q8_0",
    "64×1536²",
    "64×1536², f16",
    "64×1536², W [n, k]",
    "64×1536², W [n, k] f16",
    "64×1536², W Q4_1",
    "64×1536², W Q8_0",
];

/// The row of a case that does its work: what adds up parts has few multiply-adds, or none, and may have more workgroups.
fn main_row<'a>(rows: &'a [Row], case: &str) -> Option<&'a Row> {
    rows.iter().filter(|row| row.case == case).max_by_key(|row| row.figures.hot.n_fma)
}

/// Everything that breaks a bound.
pub fn faults(family: &str, rows: &[Row]) -> Vec<String> {
    let mut faults = Vec::new();
    let min_waves = MIN_WAVES.iter().find(|(name, _)| *name == family).map_or(1, |(_, n)| *n);
    for row in rows {
        let mut fault = |what: String| faults.push(format!("{family}: {}: {}: {what}", row.case, row.kernel));
        let Figures { waves, spills, .. } = row.figures;
        if spills > 0 {
            fault("spills registers".into());
        }
        if waves < min_waves {
            fault(format!("{waves} waves, at least {min_waves} are wanted"));
        }
    }
    for (case, least) in MIN_FMA_PERCENT {
        match rows.iter().filter(|row| row.case == *case).map(|row| row.figures.fma_percent).max() {
            None => faults.push(format!("{family}: {case}: there is a bound for it, but no such case")),
            Some(most) if most < *least => faults.push(format!(
                "{family}: {case}: {most} % of the hottest loop are multiply-adds, at least {least} are wanted"
            )),
            Some(_) => {}
        }
    }
    for (case, least) in MIN_GROUPS {
        let n_groups = main_row(rows, case).map_or(0, |row| row.n_groups);
        if n_groups < *least {
            faults.push(format!("{family}: {case}: {n_groups} workgroups, at least {least} are wanted"));
        }
    }
    for (case, n_trips) in SUMS_IN_BLOCKS {
        let percent = main_row(rows, case).map_or(0.0, |row| row.figures.fma_percent_of_blocks(*n_trips));
        if percent < MIN_FMA_PERCENT_OF_BLOCKS {
            faults.push(format!(
                "{family}: {case}: with what adds up blocks {percent:.1} % are multiply-adds, at least \
                 {MIN_FMA_PERCENT_OF_BLOCKS} are wanted"
            ));
        }
    }
    for row in rows {
        let most = MAX_BARRIERS.iter().find(|(case, _)| *case == row.case).map_or(u64::MAX, |(_, most)| *most);
        if row.figures.barriers > most {
            let n = row.figures.barriers;
            faults.push(format!("{family}: {}: {}: {n} barriers, {most} are wanted at most", row.case, row.kernel));
        }
    }
    for row in rows.iter().filter(|row| WHOLE_LOADS.contains(&&*row.case)) {
        if row.figures.bytes_per_load < 16.0 {
            faults.push(format!("{family}: {}: {} bytes a load, 16 are wanted", row.case, row.figures.bytes_per_load));
        }
    }
    faults
}

/// The lines that differ: `-` as kept, `+` as found. Lines stand for one kernel each, so order counts.
pub fn differences(kept: &str, found: &str) -> Vec<String> {
    let (kept, found): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), found.lines().collect());
    let gone = kept.iter().filter(|line| !found.contains(line)).map(|line| format!("- {line}"));
    let new = found.iter().filter(|line| !kept.contains(line)).map(|line| format!("+ {line}"));
    let mut differences: Vec<String> = gone.chain(new).collect();
    if differences.is_empty() && kept != found {
        differences.push("the same kernels in another order".to_string());
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::super::figures::Share;
    use super::*;

    fn row(case: &str, kernel: &str, n_groups: u64, hot: Share) -> Row {
        let figures = Figures {
            vgprs: 32,
            sgprs: 32,
            waves: 16,
            spills: 0,
            lds: 0,
            barriers: 0,
            instructions: 100,
            fma_percent: 90,
            hot,
            around: Share { n_fma: 0, n: 100 },
            bytes_per_load: 16.0,
        };
        Row { case: case.into(), kernel: kernel.into(), figures, n_dispatches: 1, n_groups }
    }

    /// The dispatch that adds up parts starts more workgroups, which says nothing of the one that multiplies.
    #[test]
    fn workgroups_are_those_of_the_kernel_that_multiplies() {
        let told = |n_groups: u64| {
            let rows = [
                row("64×1536²", "product", n_groups, Share { n_fma: 512, n: 600 }),
                row("64×1536²", "sums of parts", 384, Share { n_fma: 0, n: 50 }),
            ];
            let faults = faults("RDNA2", &rows);
            faults.into_iter().filter(|fault| fault.contains("64×1536²: ") && fault.contains("workgroups")).collect()
        };
        let few: Vec<String> = told(199);
        assert_eq!(few, ["RDNA2: 64×1536²: 199 workgroups, at least 200 are wanted"]);
        let enough: Vec<String> = told(200);
        assert!(enough.is_empty(), "{enough:?}");
    }

    #[test]
    fn what_adds_up_blocks_counts() {
        let told = |n: u64| {
            let rows = [row("1024³", "product", 128, Share { n_fma: 512, n })];
            faults("RDNA2", &rows).into_iter().filter(|fault| fault.contains("1024³: with")).collect::<Vec<_>>()
        };
        // 512 of 781 and a sixteenth of 100 are 65.03 per cent, of 783 they are 64.9.
        assert!(told(781).is_empty());
        assert_eq!(
            told(783),
            ["RDNA2: 1024³: with what adds up blocks 64.9 % are multiply-adds, at least 65 are wanted"]
        );
    }
}
