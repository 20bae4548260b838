//! Which instructions run in which pass over the index space, and where each leaves its lanes: in scratch, in the row
//! that is kept for a later pass, or straight in the output. Plain data from a program and a few facts about accesses.

use std::sync::Arc;

use crate::kernel::{Reg, Scope};
use crate::ops::RegisterStep;

use super::program::{Code, CodeInst, DerivedFacts};

/// What is done for every tile of one pass.
#[derive(Default)]
pub struct Sweep {
    /// Loads whose lanes are used where they lie.
    pub in_place: Vec<Reg>,
    pub lines: Vec<SweepStep>,
    /// Reductions fed by this pass.
    pub folds: Vec<Fold>,
    /// Which stores of the body end a tile.
    pub stores: Vec<usize>,
    /// Outer values that the lines read.
    pub outer_uses: Vec<Reg>,
    /// Values kept from earlier passes that the lines read, and which of the kept ones they are.
    pub kept_uses: Vec<(Reg, usize)>,
    /// Scratch tiles that the lines need.
    pub n_slots: usize,
}

/// One thing done to a tile.
pub struct SweepStep {
    pub reg: Reg,
    pub work: SweepOp,
    pub dst: Dst,
    /// The reduction that takes the results in as they are made, and which of the pass's it is.
    pub fold: Option<(usize, Reg)>,
}

/// What a line does.
pub enum SweepOp {
    /// The instruction of its register.
    Inst,
    /// Several arithmetic instructions at once, the value staying in registers between them.
    Chain { start: Reg, links: Vec<ChainLink> },
}

/// One step of a chain: `value ∘ operand`, or `operand ∘ value`, or of the value alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainLink {
    pub step: RegisterStep,
    pub operand: Option<Reg>,
    pub reversed: bool,
}

/// Where a line leaves its lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dst {
    /// They are read where they are.
    InPlace,
    /// Only a reduction sees them.
    Nowhere,
    /// A scratch tile.
    Slot(usize),
    /// The row kept for later passes.
    Keep(usize),
    /// The memory of this store of the body.
    Output(usize),
    /// The lanes of the block's outer values.
    Outer(usize),
}

/// A reduction and the value it is fed with.
pub struct Fold {
    pub reg: Reg,
    pub source: Reg,
}

/// All passes of a body.
#[derive(Default)]
pub struct Sweeps {
    /// Stage by stage: first the outer lines of a stage, then its pass over the inner axes. A map has one pass only.
    pub outer: Vec<Vec<SweepStep>>,
    pub inner: Vec<Sweep>,
    /// Per register, which of the outer lanes it is.
    pub outer_at: Vec<usize>,
    pub n_outer: usize,
    /// How many inner values are kept from pass to pass.
    pub n_kept: usize,
    /// What is evaluated once for a launch.
    pub uniform: Vec<Reg>,
    /// Stores of outer and uniform values, done once a block is through.
    pub outer_stores: Vec<usize>,
}

impl Sweeps {
    /// About how many bytes they occupy beside themselves.
    pub fn size_bytes(&self) -> usize {
        let links = |line: &SweepStep| match &line.work {
            SweepOp::Inst => 0,
            SweepOp::Chain { links, .. } => links.capacity() * size_of::<ChainLink>(),
        };
        let lines =
            |lines: &Vec<SweepStep>| lines.capacity() * size_of::<SweepStep>() + lines.iter().map(links).sum::<usize>();
        let pass = |pass: &Sweep| {
            lines(&pass.lines)
                + (pass.in_place.capacity() + pass.outer_uses.capacity()) * size_of::<Reg>()
                + pass.folds.capacity() * size_of::<Fold>()
                + pass.stores.capacity() * size_of::<usize>()
                + pass.kept_uses.capacity() * size_of::<(Reg, usize)>()
        };
        self.outer.iter().map(|outer| size_of::<Vec<SweepStep>>() + lines(outer)).sum::<usize>()
            + self.inner.capacity() * size_of::<Sweep>()
            + self.inner.iter().map(pass).sum::<usize>()
            + (self.outer_at.capacity() + self.outer_stores.capacity()) * size_of::<usize>()
            + self.uniform.capacity() * size_of::<Reg>()
    }
}

/// What must be known of the accesses to choose.
pub trait Facts {
    /// Whether the lanes of this load can be used where they lie.
    fn in_place(&self, load: Reg) -> bool;
    /// Whether a value may be computed straight into the memory of this store.
    fn direct(&self, store: usize) -> bool;
    /// Whether this store goes past the caches.
    fn streams(&self, store: usize) -> bool;
    /// Whether this store is of every element of the index space, not of outer ones.
    fn is_inner(&self, store: usize) -> bool;
    /// Whether reductions run along rows, so that a chain can feed them.
    fn folds_rows(&self) -> bool;
}

impl Sweeps {
    /// The passes of a program. They depend on a few facts about accesses alone, which are mostly the same for other sizes.
    pub fn of(code: &Code, facts: &dyn Facts, keep: bool) -> Arc<Sweeps> {
        let mut known = DerivedFacts::new();
        known.push(keep);
        known.push(facts.folds_rows());
        for (i, _) in code.insts.iter().enumerate().filter(|(_, inst)| matches!(inst, CodeInst::Load { .. })) {
            known.push(facts.in_place(i as Reg));
        }
        for store in 0..code.body.stores.len() {
            known.push(facts.direct(store));
            known.push(facts.streams(store));
            known.push(facts.is_inner(store));
        }
        code.derived.get(known, || Sweeps::new(code, facts, keep))
    }

    /// Divides the instructions. `keep`: rows are short enough that inner values stay for later passes; otherwise
    /// they are computed again.
    fn new(code: &Code, facts: &dyn Facts, keep: bool) -> Sweeps {
        let main = if code.body.inner_rank > 0 { Scope::Inner } else { Scope::Outer };
        let mut builder =
            SweepBuilder { code, facts, keep, main, computed_in: vec![None; code.insts.len()], kept: Vec::new() };
        let is_inner = |s: &usize| main == Scope::Outer || facts.is_inner(*s);
        let (inner_stores, outer_stores): (Vec<usize>, Vec<usize>) = (0..code.body.stores.len()).partition(is_inner);
        let value = |s: &usize| code.alias[code.body.stores[*s].value as usize];

        let folds_of = |stage: u16| {
            let reduce = move |i: usize| match &code.insts[i] {
                CodeInst::Reduce { x, .. } if code.stages[i] == stage => Some(Fold { reg: i as Reg, source: *x }),
                _ => None,
            };
            (0..code.insts.len()).filter_map(reduce)
        };
        let last_fold = (0..code.insts.len())
            .filter(|i| matches!(code.insts[*i], CodeInst::Reduce { .. }))
            .map(|i| code.stages[i])
            .max();
        // Stores wait for the last pass: an earlier one might overwrite what a later one reads again.
        let known_in =
            |r: Reg| code.stages[r as usize] + matches!(code.insts[r as usize], CodeInst::Reduce { .. }) as u16;
        let last_store = inner_stores.iter().map(|s| known_in(value(s))).max();
        let n_passes = last_fold.max(last_store).map_or(0, |s| s as usize + 1);

        let mut wanted = Vec::new();
        for stage in 0..n_passes {
            let folds: Vec<Fold> = folds_of(stage as u16).collect();
            let stores = if stage + 1 == n_passes { inner_stores.clone() } else { Vec::new() };
            let roots = folds.iter().map(|f| f.source).chain(stores.iter().map(value));
            let mut pass = Sweep::default();
            let regs = builder.need(stage, roots, &mut pass);
            wanted.push((regs, Sweep { folds, stores, ..pass }));
        }
        let inner = wanted.into_iter().map(|(regs, pass)| builder.place(&regs, pass)).collect();

        let mut passes = Sweeps { inner, n_kept: builder.kept.len(), outer_stores, ..Sweeps::default() };
        passes.outer_at = vec![0; code.insts.len()];
        let n_stages = code.stages.iter().max().map_or(0, |s| *s as usize) + 2;
        passes.outer.resize_with(n_stages, Vec::new);
        for (i, inst) in code.insts.iter().enumerate() {
            match code.scope(i as Reg) {
                _ if matches!(inst, CodeInst::Alias) => {}
                Scope::Uniform => passes.uniform.push(i as Reg),
                Scope::Outer if main == Scope::Inner => passes.outer_line(code, i),
                _ => {}
            }
        }
        passes
    }

    fn outer_line(&mut self, code: &Code, i: usize) {
        self.outer_at[i] = self.n_outer;
        let dst = Dst::Outer(self.n_outer);
        self.n_outer += 1;
        if !matches!(code.insts[i], CodeInst::Reduce { .. }) {
            self.outer[code.stages[i] as usize].push(SweepStep { reg: i as Reg, work: SweepOp::Inst, dst, fold: None });
        }
    }
}

struct SweepBuilder<'a> {
    code: &'a Code,
    facts: &'a dyn Facts,
    keep: bool,
    main: Scope,
    /// The first pass that computes each register.
    computed_in: Vec<Option<usize>>,
    /// Registers kept from the pass that computes them to later ones.
    kept: Vec<Reg>,
}

impl SweepBuilder<'_> {
    /// The registers that a pass must compute for `roots`. Notes in `pass` which others it reads.
    fn need(&mut self, stage: usize, roots: impl Iterator<Item = Reg>, pass: &mut Sweep) -> Vec<Reg> {
        let mut needed = vec![false; self.code.insts.len()];
        let mut outer = vec![false; self.code.insts.len()];
        let mut pending: Vec<Reg> = roots.collect();
        while let Some(reg) = pending.pop() {
            let i = reg as usize;
            match self.code.scope(reg) {
                scope if scope == self.main => {}
                scope => {
                    outer[i] |= scope == Scope::Outer;
                    continue;
                }
            }
            if needed[i] {
                continue;
            }
            if let Some(keep) = self.kept_from_before(stage, reg) {
                if !pass.kept_uses.contains(&(reg, keep)) {
                    pass.kept_uses.push((reg, keep));
                }
                continue;
            }
            needed[i] = true;
            self.code.for_each_operand(reg, |r| pending.push(r));
        }
        let listed = |flags: &[bool]| (0..flags.len()).filter(|i| flags[*i]).map(|i| i as Reg).collect::<Vec<_>>();
        pass.outer_uses = listed(&outer);
        let regs = listed(&needed);
        regs.iter().for_each(|r| _ = self.computed_in[*r as usize].get_or_insert(stage));
        regs
    }

    /// If an earlier pass has computed it and it is worth keeping, it is kept, as which.
    fn kept_from_before(&mut self, stage: usize, reg: Reg) -> Option<usize> {
        let before = self.computed_in[reg as usize].is_some_and(|p| p < stage);
        let free = matches!(self.code.insts[reg as usize], CodeInst::Load { .. }) && self.facts.in_place(reg);
        if !before || free || !self.keep || self.is_cheap(reg) {
            return None;
        }
        let at = self.kept.iter().position(|k| *k == reg);
        Some(at.unwrap_or_else(|| {
            self.kept.push(reg);
            self.kept.len() - 1
        }))
    }

    /// Whether computing it again costs no more than reading it: one step from what lies in memory.
    fn is_cheap(&self, reg: Reg) -> bool {
        let is_near = |r: Reg| {
            let is_load = matches!(self.code.insts[r as usize], CodeInst::Load { .. });
            self.code.scope(r) != self.main || is_load && self.facts.in_place(r)
        };
        match self.code.insts[reg as usize] {
            CodeInst::Binary {
                x, y, step: Some(RegisterStep::Add | RegisterStep::Sub | RegisterStep::Mul), ..
            } => is_near(x) && is_near(y),
            _ => false,
        }
    }

    /// Lines for these registers, chained where they can be, each with its place.
    fn place(&self, regs: &[Reg], mut pass: Sweep) -> Sweep {
        let code = self.code;
        let mut uses = vec![0u32; code.insts.len()];
        regs.iter().for_each(|r| code.for_each_operand(*r, |o| uses[o as usize] += 1));
        let stored = |s: &usize| code.alias[code.body.stores[*s].value as usize];
        let last: Vec<Reg> = pass.folds.iter().map(|f| f.source).chain(pass.stores.iter().map(stored)).collect();
        last.iter().chain(&self.kept).for_each(|r| uses[*r as usize] += 1);

        let mut is_line = vec![false; code.insts.len()];
        regs.iter().for_each(|r| is_line[*r as usize] = true);
        let trunks = self.trunks(regs, &is_line, &uses);
        trunks.iter().flatten().for_each(|t| is_line[*t as usize] = false);
        for &reg in regs.iter().filter(|r| is_line[**r as usize]) {
            let work = self.work(reg, &trunks);
            let takes_in = |f: &Fold| {
                let is_float = matches!(code.insts[f.reg as usize], CodeInst::Reduce { step: Some(_), .. });
                f.source == reg && is_float && matches!(work, SweepOp::Chain { .. }) && self.facts.folds_rows()
            };
            let fold = pass.folds.iter().position(takes_in).map(|i| (i, pass.folds[i].reg));
            pass.lines.push(SweepStep { reg, work, dst: Dst::InPlace, fold });
        }
        self.assign(&mut pass, &last, &uses);
        pass
    }

    /// Per register, the operand whose value it takes on without a stop in memory: an arithmetic result that nothing
    /// else uses.
    fn trunks(&self, regs: &[Reg], is_line: &[bool], uses: &[u32]) -> Vec<Option<Reg>> {
        let is_trunk = |r: Reg, n_uses: u32| self.chains(r) && is_line[r as usize] && uses[r as usize] == n_uses;
        let mut trunks = vec![None; self.code.insts.len()];
        for &reg in regs.iter().filter(|r| self.chains(**r)) {
            trunks[reg as usize] = match self.code.insts[reg as usize] {
                CodeInst::Unary { x, .. } => Some(x).filter(|x| is_trunk(*x, 1)),
                CodeInst::Binary { x, y, step: Some(RegisterStep::Mul), .. } if x == y => {
                    Some(x).filter(|x| is_trunk(*x, 2))
                }
                CodeInst::Binary { x, y, .. } => [x, y].into_iter().find(|o| is_trunk(*o, 1)),
                _ => None,
            };
        }
        trunks
    }

    /// Whether it can be a step of a chain.
    fn chains(&self, reg: Reg) -> bool {
        use CodeInst::{Binary, Unary};
        matches!(self.code.insts[reg as usize], Binary { step: Some(_), .. } | Unary { step: Some(_), .. })
    }

    fn work(&self, reg: Reg, trunks: &[Option<Reg>]) -> SweepOp {
        if !self.chains(reg) {
            return SweepOp::Inst;
        }
        // A single step is a chain too: that is its fastest loop.
        let (mut at, mut links) = (reg, Vec::new());
        loop {
            let trunk = trunks[at as usize];
            let (link, from) = match self.code.insts[at as usize] {
                CodeInst::Unary { x, step: Some(step), .. } => (ChainLink { step, operand: None, reversed: false }, x),
                CodeInst::Binary { x, y, step: Some(RegisterStep::Mul), .. } if x == y => {
                    (ChainLink { step: RegisterStep::Square, operand: None, reversed: false }, x)
                }
                CodeInst::Binary { x, y, step: Some(step), .. } if trunk == Some(y) => {
                    (ChainLink { step, operand: Some(x), reversed: true }, y)
                }
                CodeInst::Binary { x, y, step: Some(step), .. } => {
                    (ChainLink { step, operand: Some(y), reversed: false }, x)
                }
                _ => unreachable!("only steps are chained"),
            };
            links.push(link);
            if trunk.is_none() {
                links.reverse();
                return SweepOp::Chain { start: from, links };
            }
            at = from;
        }
    }

    /// Gives each line its destination: scratch tiles are reused once their last reader has run, but a line never
    /// writes what it reads.
    fn assign(&self, pass: &mut Sweep, last: &[Reg], uses: &[u32]) {
        let n_lines = pass.lines.len();
        let mut last_use = vec![0; self.code.insts.len()];
        for (idx, line) in pass.lines.iter().enumerate() {
            self.for_each_source(line, |r| last_use[r as usize] = idx);
        }
        last.iter().for_each(|r| last_use[*r as usize] = n_lines);
        let mut slot_of = vec![None; self.code.insts.len()];
        let (mut free, mut directed) = (Vec::new(), Vec::new());
        for idx in 0..n_lines {
            let reg = pass.lines[idx].reg;
            // Arithmetic can write past the caches, unless the value is read again; the rest leaves that to the store.
            let computes = !matches!(
                self.code.insts[reg as usize],
                CodeInst::Load { .. }
                    | CodeInst::Gather { .. }
                    | CodeInst::Custom { .. }
                    | CodeInst::Valid { .. }
                    | CodeInst::Index { .. }
            );
            let store = pass.stores.iter().copied().find(|s| {
                let is_value = self.code.alias[self.code.body.stores[*s].value as usize] == reg;
                is_value && self.facts.direct(*s) && (computes && uses[reg as usize] == 1 || !self.facts.streams(*s))
            });
            let dst = match (&self.code.insts[reg as usize], self.kept.iter().position(|k| *k == reg), store) {
                _ if pass.lines[idx].fold.is_some() && uses[reg as usize] == 1 => Dst::Nowhere,
                (CodeInst::Acc(_), ..) => Dst::InPlace,
                (_, Some(keep), _) => Dst::Keep(keep),
                (_, None, Some(store)) => {
                    directed.push(store);
                    Dst::Output(store)
                }
                (CodeInst::Load { .. }, None, None) if self.facts.in_place(reg) => Dst::InPlace,
                _ => {
                    let slot = free.pop().unwrap_or_else(|| {
                        pass.n_slots += 1;
                        pass.n_slots - 1
                    });
                    slot_of[reg as usize] = Some(slot);
                    Dst::Slot(slot)
                }
            };
            pass.lines[idx].dst = dst;
            self.for_each_source(&pass.lines[idx], |r| {
                if last_use[r as usize] == idx {
                    free.extend(slot_of[r as usize].take());
                }
            });
        }
        pass.stores.retain(|s| !directed.contains(s));
        let is_view =
            |l: &SweepStep| l.dst == Dst::InPlace && matches!(self.code.insts[l.reg as usize], CodeInst::Load { .. });
        pass.in_place = pass.lines.iter().filter(|l| is_view(l)).map(|l| l.reg).collect();
        pass.lines.retain(|l| !is_view(l));
    }

    fn for_each_source(&self, line: &SweepStep, mut f: impl FnMut(Reg)) {
        match &line.work {
            SweepOp::Inst => self.code.for_each_operand(line.reg, f),
            SweepOp::Chain { start, links } => {
                [*start].into_iter().chain(links.iter().filter_map(|l| l.operand)).for_each(&mut f)
            }
        }
    }
}
