//! What building a body asks of a graph's numbers, written down with the answers: which index maps are equal, where each varies,
//! which constants are one. The instructions follow from structure and from these answers alone. So when a template is filled
//! with other numbers, the same questions are asked in the same order; if all answers are the same, the body is the one that
//! was built before, and only its index maps are new. If one differs, the group is lowered afresh.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::lower::Lowering;
use super::{BodyBuilder, MapId};
use crate::graph::{NodeIdx, Op};
use crate::kernel::{Body, Reg, Scope};

/// A question, and its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BodyQuestion {
    /// The number of a map that is handed in.
    Map(MapId),
    /// The number of the map through which the input of a view or pad is seen.
    View { node: NodeIdx, from: MapId, to: MapId },
    /// The number of the map that sees one element everywhere: the fill of a pad.
    Everywhere(MapId),
    /// The number of the map that sees what is reduced.
    Reduced(MapId),
    /// The access by which a stored node is loaded, and whether it is bound as an input for the first time.
    Load { node: NodeIdx, map: MapId, access: u16, is_bound: bool },
    /// The access of an index.
    Index { map: MapId, access: u16 },
    /// The access of a pad.
    Pad { node: NodeIdx, map: MapId, access: u16 },
    /// The access of a store.
    Store(u16),
    /// The place of a constant among those of the body by number and type, and by number alone.
    Const { node: NodeIdx, place: u16, constant: u16 },
    /// The register that was made for a node, or by whoever builds the body.
    Made(Reg),
}

/// A body, and all that was asked while it was built.
pub struct RecordedBody {
    asked: Vec<BodyQuestion>,
    pub body: Arc<Body>,
    /// Per access, where it varies.
    pub scopes: Vec<Scope>,
    pub ops: Vec<Cow<'static, str>>,
}

/// The bodies of a group, in the order in which they were built.
pub type RecordedGroup = Arc<[RecordedBody]>;

/// An answer is another one than the last time: the body has to be built.
#[derive(Clone, Copy, Debug)]
pub struct Differs;

/// What becomes of the questions while a group is lowered.
#[derive(Default)]
pub enum GroupRecording {
    /// Nobody needs them.
    #[default]
    Off,
    /// They are written down. None if something was met that has to be built every time.
    Writes(Option<Vec<RecordedBody>>),
    /// They are compared with those of the last time; and how many bodies have been made.
    Follows(RecordedGroup, usize),
}

/// What becomes of the questions while one body is built.
pub enum BodyRecording {
    Off,
    Writes(Vec<BodyQuestion>),
    Follows(Follower),
}

/// A body that was recorded, and how far its questions have been asked again.
pub struct Follower {
    group: RecordedGroup,
    number: usize,
    next: usize,
    differs: bool,
}

impl GroupRecording {
    /// For the next body of the group.
    pub fn next_body(&mut self) -> BodyRecording {
        match self {
            GroupRecording::Writes(Some(_)) => BodyRecording::Writes(Vec::with_capacity(32)),
            GroupRecording::Off | GroupRecording::Writes(None) => BodyRecording::Off,
            GroupRecording::Follows(group, n_made) => {
                *n_made += 1;
                let number = *n_made - 1;
                // One body more than there were: the first question has no answer.
                let differs = number >= group.len();
                BodyRecording::Follows(Follower { group: group.clone(), number, next: 0, differs })
            }
        }
    }

    /// What was written down, if all bodies can be followed.
    pub fn into_recorded(self) -> Option<RecordedGroup> {
        match self {
            GroupRecording::Writes(Some(bodies)) => Some(bodies.into()),
            _ => None,
        }
    }
}

impl Follower {
    fn body(&self) -> &RecordedBody {
        &self.group[self.number]
    }

    /// The next answer.
    fn next(&mut self) -> Result<BodyQuestion, Differs> {
        if self.differs {
            return Err(Differs);
        }
        self.next += 1;
        self.body().asked.get(self.next - 1).copied().ok_or(Differs)
    }

    /// The recorded body, if everything was asked and answered as before.
    pub fn finished(&self) -> Result<&RecordedBody, Differs> {
        match !self.differs && self.next == self.body().asked.len() {
            true => Ok(self.body()),
            false => Err(Differs),
        }
    }
}

impl BodyRecording {
    /// A question and its answer.
    pub fn asked(&mut self, asked: BodyQuestion) {
        match self {
            BodyRecording::Off => {}
            BodyRecording::Writes(all) => all.push(asked),
            BodyRecording::Follows(follower) => {
                let is_same = follower.next().is_ok_and(|known| known == asked);
                follower.differs |= !is_same;
            }
        }
    }

    /// Something was met whose numbers are not asked for: the body is built every time.
    pub fn must_be_built(&mut self) {
        match self {
            BodyRecording::Follows(follower) => follower.differs = true,
            _ => *self = BodyRecording::Off,
        }
    }

    /// The register that was made at this place before, if a recording is followed.
    pub fn made(&mut self) -> Option<Reg> {
        let BodyRecording::Follows(follower) = self else { return None };
        match follower.next() {
            Ok(BodyQuestion::Made(reg)) => Some(reg),
            _ => {
                follower.differs = true;
                Some(0)
            }
        }
    }

    /// Writes a finished body down.
    pub fn finish(self, lowering: &mut Lowering, body: &Arc<Body>, scopes: Vec<Scope>, ops: &[Cow<'static, str>]) {
        let GroupRecording::Writes(bodies) = &mut lowering.recording else { return };
        match self {
            BodyRecording::Writes(asked) => {
                if let Some(bodies) = bodies {
                    bodies.push(RecordedBody { asked, body: body.clone(), scopes, ops: ops.to_vec() });
                }
            }
            BodyRecording::Off | BodyRecording::Follows(_) => *bodies = None,
        }
    }
}

impl BodyBuilder {
    /// Asks again what was asked to evaluate a node: the register that it is in.
    pub(super) fn follow(&mut self, lowering: &mut Lowering) -> Result<Reg, Differs> {
        let BodyRecording::Follows(follower) = &mut self.recording else { unreachable!("only where one is followed") };
        let (group, number) = (follower.group.clone(), follower.number);
        if follower.differs {
            return Err(Differs);
        }
        let mut next = follower.next;
        let reg = loop {
            let asked = group[number].asked.get(next).ok_or(Differs)?;
            next += 1;
            let is_same = match *asked {
                BodyQuestion::View { node, from, to } => {
                    let (Op::View(view) | Op::Pad(view)) = &lowering.graph.nodes[node as usize].op else {
                        return Err(Differs);
                    };
                    self.number_through(from, view) == to
                }
                BodyQuestion::Everywhere(to) => {
                    let everywhere = self.everywhere();
                    self.number(everywhere) == to
                }
                BodyQuestion::Reduced(to) => {
                    let reduced = self.reduced();
                    self.number(reduced) == to
                }
                BodyQuestion::Load { node, map, access, is_bound } => {
                    let source = lowering.source(self.group, node);
                    if is_bound {
                        self.bind(source);
                    }
                    self.access_by(map) == access
                }
                BodyQuestion::Index { map, access } => self.access_by(map) == access,
                BodyQuestion::Pad { node, map, access } => {
                    let (Op::View(view) | Op::Pad(view)) = &lowering.graph.nodes[node as usize].op else {
                        return Err(Differs);
                    };
                    let seen = self.number_through(map, view);
                    self.access_by(seen) == access
                }
                BodyQuestion::Const { node, place, constant } => {
                    self.const_place(&lowering.graph.nodes[node as usize]) == (place, constant)
                }
                BodyQuestion::Made(reg) => break reg,
                // Asked by whoever builds the body, never while a node is evaluated.
                BodyQuestion::Map(_) | BodyQuestion::Store(_) => false,
            };
            if !is_same {
                return Err(Differs);
            }
        };
        let BodyRecording::Follows(follower) = &mut self.recording else { unreachable!("it is followed") };
        follower.next = next;
        Ok(reg)
    }
}
