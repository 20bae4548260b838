//! Structure and numbers apart: a [`Template`] is what fusing decided for a structure, with the questions about sizes that
//! it asked. Another graph of that structure for which all answers are the same is *filled*: its numbers are lowered into
//! the same groups, and fusing is not run again. Since fusing sees sizes through those questions alone, a filled plan is
//! the plan that would be made afresh, whatever sizes were met before. Debug builds make that, too, and compare.
//!
//! The instructions of kernels are mostly what they were as well (`body/recorded.rs`), so that little but numbers is made.
//!
//! Which template serves a graph is found by the key of its structure; the few of one structure that differ in answers are
//! tried one after another. Knows nothing of devices and caches.

use std::cell::{OnceCell, RefCell, RefMut};
use std::hash::BuildHasherDefault;

use super::attention::ChainedProducts;
use super::edges::{Answers, Edge};
use super::groups::{Group, Groups, StoredNode};
use super::lower::GroupMemos;
use super::outline::PlanOutline;
use crate::fast_hash::FastHasher;
use crate::graph::{CustomRef, Graph, Key, Op};
use crate::lru::Lru;
use crate::target::Limits;

/// What fusing decided for a structure, as long as questions about sizes have these answers.
pub struct Template {
    pub groups: Groups,
    pub answers: Answers,
    /// Whether it says all that planning decided: not where commits had to be taken apart, which is found out by trying.
    pub is_for_all: bool,
    /// The kernels that were filled last, and the plan that they made. Most templates are never filled: made when the first
    /// graph is.
    memos: OnceCell<GroupMemos>,
    outline: RefCell<Option<PlanOutline>>,
    /// The user's own ops in it: held, so that none that is made later can have the address of one.
    _customs: Vec<CustomRef>,
}

impl Template {
    /// What fusing decided for a graph.
    pub fn new(graph: &Graph, groups: Groups, answers: Answers, is_for_all: bool) -> Template {
        let custom = |op: &Op| if let Op::Custom(op) = op { Some(op.clone()) } else { None };
        let customs = graph.nodes.iter().filter_map(|node| custom(&node.op)).collect();
        Template { groups, answers, is_for_all, memos: OnceCell::new(), outline: RefCell::default(), _customs: customs }
    }

    /// What its groups were lowered to last.
    pub fn memos(&self, graph: &Graph) -> &GroupMemos {
        self.memos.get_or_init(|| GroupMemos::new(graph, &self.groups))
    }

    /// What sizes left of the plan that was filled last, if it has an outline.
    pub fn outline(&self) -> RefMut<'_, Option<PlanOutline>> {
        self.outline.borrow_mut()
    }

    /// Whether it is what fusing would decide for another graph of its structure.
    fn serves(&self, graph: &Graph, limits: &Limits, chained: &ChainedProducts) -> bool {
        self.answers.iter().all(|(edge, answer)| edge.answer(graph, limits, chained) == *answer)
    }

    /// About how many bytes it occupies, once it has been filled.
    fn size_bytes(&self) -> usize {
        let stores = |group: &Group| group.stores.capacity() * size_of::<StoredNode>();
        let Groups { groups, group_of, stored, reasons } = &self.groups;
        size_of::<Template>()
            + groups.capacity() * size_of::<Group>()
            + groups.iter().map(stores).sum::<usize>()
            + group_of.capacity() * size_of::<Option<u32>>()
            + stored.capacity()
            + reasons.capacity() * size_of::<Option<&str>>()
            + self.answers.capacity() * size_of::<(Edge, bool)>()
            + groups.len() * GROUP_BYTES
    }
}

/// What the kernels of a group take, about, that are kept for the next fill.
const GROUP_BYTES: usize = 6 << 10;

/// Templates by structure. They take at most so many bytes; beyond it the structures go that were used longest ago.
pub struct Templates {
    known: Lru<Key, Vec<Template>, BuildHasherDefault<FastHasher>>,
    max_bytes: usize,
    /// What was taken out: it may own functions of the user's, which are dropped when no lock is held.
    gone: Vec<Vec<Template>>,
}

/// Templates that differ in answers alone are kept for a structure up to this many; beyond it the oldest goes.
const MAX_ANSWERS: usize = 16;

impl Templates {
    /// None yet.
    pub fn new(max_bytes: usize) -> Templates {
        Templates { known: Lru::default(), max_bytes, gone: Vec::new() }
    }

    /// The template that serves a graph of this structure.
    pub fn serving(
        &mut self,
        structure: &Key,
        graph: &Graph,
        limits: &Limits,
        chained: &ChainedProducts,
    ) -> Option<&Template> {
        self.known.get(structure)?.iter().find(|template| template.serves(graph, limits, chained))
    }

    /// Keeps a template.
    pub fn insert(&mut self, structure: Key, template: Template) {
        let mut of_structure = self.known.remove(&structure).unwrap_or_default();
        if of_structure.len() == MAX_ANSWERS {
            self.gone.push(vec![of_structure.remove(0)]);
        }
        of_structure.push(template);
        let size_bytes = structure.size_bytes() + of_structure.iter().map(Template::size_bytes).sum::<usize>();
        self.gone.extend(self.known.insert(structure, of_structure, size_bytes));
        while self.known.size_bytes() > self.max_bytes && self.known.len() > 1 {
            self.gone.extend(self.known.pop_oldest());
        }
    }

    /// The bytes of all templates, about.
    pub fn size_bytes(&self) -> usize {
        self.known.size_bytes()
    }

    /// Of how many structures there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Lets go of all of them.
    pub fn clear(&mut self) {
        while let Some(oldest) = self.known.pop_oldest() {
            self.gone.push(oldest);
        }
        self.known = Lru::default();
    }

    /// What was let go, to be dropped by who holds no lock.
    pub fn take_gone(&mut self) -> Vec<Vec<Template>> {
        std::mem::take(&mut self.gone)
    }
}
