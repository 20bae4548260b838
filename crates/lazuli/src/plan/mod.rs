//! From a graph to what is run: launches over slots. Knows shapes, kernels and the target it is handed; no device.

mod checks;
mod stages;
mod simplify;
mod operand;
mod groups;
mod attention;
mod edges;
mod fuse;
mod maps;
mod repeated;
mod body;
mod lower;
mod split;
mod grouped;
mod order;
mod bases;
mod memory;
mod structure;
mod outline;
mod template;
mod scratch;
mod explain;
mod verify;
mod display;
mod cache;
#[cfg(test)]
mod tests;

pub use cache::{Cache, CachedPlan, Locked};
pub use explain::{Boundary, Explain, KernelInfo};
pub use repeated::RepeatedWork;
pub use scratch::{Scratch, scratch, verify_scratch};
#[cfg(feature = "gpu")]
pub use split::k_parts;
pub use stages::StageEnd;
pub use template::Templates;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use self::edges::AskedGraph;
use self::lower::Lowered;
use self::memory::Assignment;
use self::operand::OperandForms;
use self::order::Ordered;
use self::outline::PlanOutline;
use self::template::Template;
use crate::dtype::DType;
use crate::graph::{Graph, NodeIdx};
use crate::kernel::{Args, Kernel};
use crate::log::{self, Topic};
use crate::target::{Limits, PanelWidths, Target};

impl Limits {
    /// How the left and the right operand of a product of this type may lie.
    fn operand_forms(&self, dtype: DType) -> [OperandForms; 2] {
        let panels = self.panels.filter(|_| dtype.is_float());
        let bytes = self.products_of_bytes && dtype.is_int();
        let left = OperandForms { panels: None, max_list_elems: self.max_list_elems, bytes };
        [left, OperandForms { panels, ..left }]
    }
}

/// A place for a value while the plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A value that is stored while a plan runs: a node's, or a piece of work in between.
pub type ValueId = u32;

/// What memory a slot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub kind: SlotKind,
    pub size_bytes: usize,
}

/// Where a slot's memory comes from, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// The caller's memory: this input of the plan. Written only if it was donated.
    Input { idx: u32, donated: bool },
    /// New memory that outlives the run.
    Output,
    /// Memory for the time of the run.
    Temp,
}

/// One kernel to run: what it is and what it runs on, and its numbers.
#[derive(Clone, Debug)]
pub struct Launch {
    structure: Arc<LaunchStructure>,
    pub args: Args,
    /// If it is grouped: its parts, which run in any order or at once. What they read and write, part after part, is what the
    /// launch does.
    pub parts: Vec<Launch>,
}

/// All of a launch that is no number. Plans that are filled from one template share it.
#[derive(Clone, Debug)]
pub struct LaunchStructure {
    pub kernel: Kernel,
    /// Bound to the kernel's inputs, in order.
    pub reads: Vec<SlotId>,
    /// Bound to its outputs, in order. May name a slot that is also read: then each element is read before it is
    /// written, by the same index.
    pub writes: Vec<SlotId>,
    /// The value in each slot that is read and written: what the verifier follows.
    pub read_values: Vec<ValueId>,
    pub write_values: Vec<ValueId>,
    /// The outputs that are another value but for the rows that are written; that value is in the slot before.
    pub bases: Vec<(u16, ValueId)>,
    /// The nodes it computes that may fail, as the capture numbers them, if anything is committed: what the verifier
    /// follows.
    pub may_fail: Vec<NodeIdx>,
    /// The ops it computes, in order, for people.
    pub ops: Vec<Cow<'static, str>>,
    /// If it is a part of a kernel that was cut: which kernel.
    pub part_of: Option<u32>,
    /// The program that a backend compiled the kernel to.
    pub compiled: CompiledKernel,
}

/// The program that a backend compiled a kernel to, held weakly: while a plan holds the program, a launch finds it here without looking
/// it up by the kernel's instructions. A copy of a launch may be turned into another kernel, so the copy begins without a program.
#[derive(Default)]
pub struct CompiledKernel(Mutex<Option<Weak<dyn Any + Send + Sync>>>);

impl CompiledKernel {
    /// The program, if the kernel was compiled and a plan still holds the program.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.known().as_ref()?.upgrade()?.downcast().ok()
    }

    /// Keeps a weak reference to the program.
    pub fn set<T: Any + Send + Sync>(&self, compiled: &Arc<T>) {
        let compiled: Weak<T> = Arc::downgrade(compiled);
        *self.known() = Some(compiled);
    }

    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn known(&self) -> MutexGuard<'_, Option<Weak<dyn Any + Send + Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for CompiledKernel {
    fn clone(&self) -> CompiledKernel {
        CompiledKernel::default()
    }
}

/// Prints `_`, since compiled programs are no part of a plan's text.
impl fmt::Debug for CompiledKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl Deref for Launch {
    type Target = LaunchStructure;

    fn deref(&self) -> &LaunchStructure {
        &self.structure
    }
}

/// Tests break plans to see that the verifier finds it.
#[cfg(test)]
impl std::ops::DerefMut for Launch {
    fn deref_mut(&mut self) -> &mut LaunchStructure {
        Arc::make_mut(&mut self.structure)
    }
}

impl Launch {
    /// One that is not grouped.
    pub fn new(structure: LaunchStructure, args: Args) -> Launch {
        Launch { structure: Arc::new(structure), args, parts: Vec::new() }
    }

    /// A copy of the launch whose numbers are yet to be filled in.
    fn without_numbers(&self) -> Launch {
        let parts = self.parts.iter().map(Launch::without_numbers).collect();
        Launch { structure: self.structure.clone(), args: Args::default(), parts }
    }

    /// Its parts; itself if it is not grouped.
    pub fn each(&self) -> &[Launch] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    /// The kernel in one line.
    pub fn text(&self) -> String {
        self.each().iter().map(|part| part.kernel.text(&part.args)).collect::<Vec<_>>().join(" | ")
    }
}

/// What is run: launches in order, over slots. A plain value with a stable text.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub launches: Vec<Launch>,
    pub slots: Vec<Slot>,
    /// Where each wanted output is found when all has run. May be an input's slot.
    pub outputs: Vec<SlotId>,
    pub output_values: Vec<ValueId>,
    /// How far each stage goes, in order; one if nothing is staged.
    pub stages: Vec<StageEnd>,
    /// Per output, whether it can be read even if a check fails: it is then what it was before.
    pub settled: Vec<bool>,
    /// Whether anything that was asked for is a commit, even where this plan itself cannot fail. The CPU knows at once what
    /// failed, and need not ask.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub commits: bool,
    /// The value that each input brings.
    pub input_values: Vec<ValueId>,
    /// Per value, how many elements it has.
    pub value_elems: Vec<usize>,
    /// For each check a kernel may fail: the node of the graph whose index was out of range.
    pub checks: Vec<NodeIdx>,
    /// The least temporary memory any assignment of slots could use for these launches in this order.
    pub temp_lower_bound: usize,
    /// Per value, why those who read it are not part of the kernel that makes it: what `explain` tells.
    pub reasons: Vec<Option<&'static str>>,
}

/// Plans a graph afresh.
#[cfg(test)]
pub fn compile(graph: Graph, target: &Target) -> Plan {
    let draft = PlanDraft::new(graph, &target.limits);
    draft.planned(target).0
}

/// A plan, and what is told of how it was made.
pub struct ToldPlan {
    pub plan: Plan,
    /// The edges at which another size would be planned anew, as text.
    pub edges: Vec<String>,
    /// What its kernels compute more often than there are elements.
    pub repeated: Vec<RepeatedWork>,
}

/// Plans a graph afresh, to be told about.
pub fn compile_told(graph: Graph, target: &Target) -> ToldPlan {
    let limits = &target.limits;
    let draft = PlanDraft::new(graph, limits);
    let (plan, template) = draft.planned(target);
    let tell = |(edge, answer): &(edges::Edge, bool)| {
        edges::ToldEdge { edge: *edge, answer: *answer, graph: &draft.graph }.to_string()
    };
    let asked = template.answers.iter().map(tell);
    let edges = structure::told_sizes(&draft.graph).into_iter().chain(asked).chain(explain::loops(&plan)).collect();
    let evaluations = lower::evaluations(&draft.to_lower(&template, limits));
    ToldPlan { plan, edges, repeated: repeated::repeated(&draft.graph, &evaluations) }
}

/// Plans a graph by a template that serves it, or makes one. Each pass is a function from value to value; in debug builds
/// each result is verified.
pub fn plan(graph: Graph, target: &Target, templates: &mut Templates) -> (Plan, Made) {
    let limits = &target.limits;
    let draft = PlanDraft::new(graph, limits);
    let structure = structure::structure_of(&draft.graph);
    let template = templates.serving(&structure, &draft.graph, limits, &draft.chained);
    if let Some((template, plan)) = template.and_then(|template| Some((template, draft.filled(template, target)?))) {
        draft.show(template, target);
        return (plan, Made::Filled);
    }
    let (plan, template) = draft.planned(target);
    draft.show(&template, target);
    if template.is_for_all {
        templates.insert(structure, template);
    }
    (plan, Made::Compiled)
}

/// How a plan was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Afresh.
    Compiled,
    /// By a template of another size.
    Filled,
}

/// A graph on its way to a plan.
struct PlanDraft {
    graph: Graph,
    checks: checks::Checks,
    stages: stages::NodeStages,
    chained: attention::ChainedProducts,
    /// Whether anything that was asked for is a commit.
    commits: bool,
}

impl PlanDraft {
    fn new(graph: Graph, limits: &Limits) -> PlanDraft {
        let commits = checks::has_commits(&graph);
        let graph = simplify::simplify(graph, limits);
        if cfg!(debug_assertions) {
            verify::verify_graph(&graph).unwrap_or_else(|fault| panic!("bug in simplify: {fault}"));
        }
        let checks = checks::Checks::of(&graph, limits);
        let stages = stages::NodeStages::of(&graph, &checks);
        PlanDraft { graph, checks, stages, chained: Default::default(), commits }
    }

    /// Shows what was asked to be seen of the values before the plan. Of a plan that was filled, kernels are lowered once more for
    /// it.
    fn show(&self, template: &Template, target: &Target) {
        log::show(Topic::Graph, || self.graph.to_string());
        log::show(Topic::Groups, || template.groups.to_string());
        log::show(Topic::Kernels, || self.cut(self.lowered(template, &target.limits), target).to_string());
    }

    /// What fusing decides.
    fn fused(&self, limits: &Limits, commits: fuse::Commits) -> Template {
        let asked = AskedGraph::new(&self.graph, limits, &self.chained);
        let groups = fuse::fuse(&asked, limits, &self.checks, &self.stages, commits);
        if cfg!(debug_assertions) {
            let verified =
                verify::verify_groups(&self.graph, &groups, self.chained.of(&self.graph, limits), &self.checks);
            verified.unwrap_or_else(|fault| panic!("bug in fuse: {fault}\n{}\n{groups}", self.graph));
        }
        Template::new(&self.graph, groups, asked.into_answers(), commits == fuse::Commits::Join)
    }

    /// The plan made afresh, and its template.
    fn planned(&self, target: &Target) -> (Plan, Template) {
        let limits = &target.limits;
        let template = self.fused(limits, fuse::Commits::Join);
        // Kernels that commit are best those that make what is committed. Where others need what they make before a check
        // can be made, commits have kernels of their own.
        let (kernels, template) = match self.kernels(&template, target) {
            Ok(kernels) => (kernels, template),
            Err(order::Circle) => {
                let template = self.fused(limits, fuse::Commits::Apart);
                let kernels = self.kernels(&template, target);
                (kernels.unwrap_or_else(|_| unreachable!("bug in the planner: a check waits for a commit")), template)
            }
        };
        let plan = self.assigned(kernels, limits);
        if cfg!(debug_assertions) {
            let verified = verify::verify(&plan, limits)
                .and_then(|()| verify::verify_stages(&plan))
                .and_then(|()| verify::verify_commits(&plan, &self.graph, limits));
            verified.unwrap_or_else(|fault| panic!("bug in the planner: {fault}\n{plan}"));
        }
        (plan, template)
    }

    /// The plan by a template that serves the graph. None if it turns out not to: then the plan is made afresh, so that a
    /// fault here costs time, never numbers.
    fn filled(&self, template: &Template, target: &Target) -> Option<Plan> {
        let limits = &target.limits;
        let (memos, of) = (template.memos(&self.graph), self.to_lower(template, limits));
        let outline = &mut *template.outline();
        let plan = match outline.as_mut().and_then(|outline| outline.filled(&of, memos, target)) {
            Some(plan) => Plan { commits: self.commits, ..plan },
            None => {
                // Its kernels are no longer those that the memos know, whether or not this makes a plan.
                *outline = None;
                let (plan, made) = self.outlined(&of, memos, target)?;
                *outline = made;
                plan
            }
        };
        if cfg!(debug_assertions) {
            let afresh = self.planned(target).0;
            assert_eq!(format!("{plan:?}"), format!("{afresh:?}"), "a filled plan is another than one made afresh");
        }
        verify::verify_bounds(&plan, limits).ok()?;
        Some(plan)
    }

    /// The plan of these groups, and its outline if it has one. None if kernels wait for each other in a circle.
    fn outlined(
        &self,
        of: &lower::ToLower,
        memos: &lower::GroupMemos,
        target: &Target,
    ) -> Option<(Plan, Option<PlanOutline>)> {
        let limits = of.limits;
        let (lowered, nodes) = lower::lower(of, Some(memos));
        let before = nodes.map(|nodes| outline::LoweredKernels::new(&lowered, nodes, limits));
        let (kernels, stages) = bases::with_copies(self.ordered(lowered, target).ok()?, limits);
        let placed = before.and_then(|before| before.placed(&kernels.steps));
        let assignment = Assignment::of(&kernels);
        let plan = self.plan(kernels, stages, &assignment, limits);
        let outline = placed.map(|placed| placed.outline(assignment, &plan));
        Some((plan, outline))
    }

    /// The kernels of a template's groups, lowered afresh, in the order in which they run, and where each stage ends.
    fn kernels(&self, template: &Template, target: &Target) -> Result<Ordered, order::Circle> {
        self.ordered(self.lowered(template, &target.limits), target)
    }

    fn lowered(&self, template: &Template, limits: &Limits) -> Lowered {
        lower::lower(&self.to_lower(template, limits), None).0
    }

    fn ordered(&self, lowered: Lowered, target: &Target) -> Result<Ordered, order::Circle> {
        order::order(self.cut(lowered, target), &self.graph.stages)
    }

    /// All kernels, cut to what the device takes, and those that share a launch.
    fn cut(&self, lowered: Lowered, target: &Target) -> Lowered {
        let verified = |pass: &str, kernels: &Lowered| {
            if cfg!(debug_assertions) {
                let verified = verify::verify_kernels(kernels);
                verified.unwrap_or_else(|fault| panic!("bug in {pass}: {fault}\n{kernels}"));
            }
        };
        verified("lower", &lowered);
        let kernels = grouped::grouped(split::split(lowered, &target.limits), &target.limits);
        // Products that share a launch fill the device together, so that they are grouped before their sums are split.
        let kernels = split::split_sums(kernels, target);
        verified("split", &kernels);
        kernels
    }

    fn to_lower<'a>(&'a self, template: &'a Template, limits: &'a Limits) -> lower::ToLower<'a> {
        let (graph, chained) = (&self.graph, self.chained.of(&self.graph, limits));
        lower::ToLower { graph, groups: &template.groups, chained, limits, waits: &self.checks }
    }

    fn assigned(&self, kernels: Ordered, limits: &Limits) -> Plan {
        let (kernels, stages) = bases::with_copies(kernels, limits);
        let assignment = Assignment::of(&kernels);
        self.plan(kernels, stages, &assignment, limits)
    }

    fn plan(&self, kernels: Lowered, stages: Vec<StageEnd>, assignment: &Assignment, limits: &Limits) -> Plan {
        let settled = checks::settled(&self.graph, limits);
        Plan { commits: self.commits, settled, stages, ..assignment.plan(kernels) }
    }
}
