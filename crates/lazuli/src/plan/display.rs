//! The texts of the planner's values: which nodes share a kernel, the kernels before they have memory, and the plan. Same graph,
//! same bytes.

use std::fmt;

use super::groups::{Form, Group, Groups, StoredNode};
use super::lower::{LaunchDraft, Lowered};
use super::{Plan, SlotKind};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, slot) in self.slots.iter().enumerate() {
            let kind = match slot.kind {
                SlotKind::Input { idx, donated: false } => format!("input {idx}"),
                SlotKind::Input { idx, donated: true } => format!("input {idx}, donated"),
                SlotKind::Output => "output".to_string(),
                SlotKind::Temp => "temp".to_string(),
            };
            writeln!(f, "s{i}: {} B, {kind}", slot.size_bytes)?;
        }
        for (i, launch) in self.launches.iter().enumerate() {
            let stage = self.stages.iter().take_while(|end| end.launches <= i).count();
            if stage > 0 && self.stages[stage - 1].launches == i {
                writeln!(f, "stage {stage}:")?;
            }
            let slots = |ids: &[super::SlotId]| ids.iter().map(|s| format!("s{}", s.0)).collect::<Vec<_>>().join(" ");
            writeln!(f, "{} <- {}: {}", slots(&launch.writes), slots(&launch.reads), launch.text())?;
        }
        write!(f, "outputs:")?;
        self.outputs.iter().try_for_each(|o| write!(f, " s{}", o.0))
    }
}

/// One line a group, then the nodes that none of them makes: inputs, and what is made wherever it is wanted.
impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut members, mut others) = (vec![String::new(); self.groups.len()], String::new());
        for (idx, group) in self.group_of.iter().enumerate() {
            *group.map_or(&mut others, |group| &mut members[group as usize]) += &format!(" #{idx}");
        }
        for (number, group) in self.groups.iter().enumerate() {
            let Group { form, domain, level, stage, stores, made } = group;
            write!(f, "g{number}: ")?;
            match form {
                Form::Map => write!(f, "map over #{domain}")?,
                Form::Reduce { first, split } => {
                    write!(f, "reduce like #{first}{}", if *split { " in pieces" } else { "" })?;
                }
                Form::Matmul(product) => write!(f, "matmul #{product}")?,
                Form::Attention(chained) => write!(f, "attention {chained} over #{domain}")?,
                Form::Routine(node) => write!(f, "routine #{node}")?,
            }
            for (name, node) in ["left", "right"].iter().zip(made) {
                node.iter().try_for_each(|node| write!(f, ", makes its {name} operand of #{node}"))?;
            }
            write!(f, ", level {level}")?;
            if *stage > 0 {
                write!(f, ", stage {stage}")?;
            }
            if !members[number].is_empty() {
                write!(f, ", of{}", members[number])?;
            }
            write!(f, ", stores")?;
            for (i, StoredNode { value, part_of }) in stores.iter().enumerate() {
                write!(f, "{} #{value}", if i > 0 { "," } else { "" })?;
                if let Some(part) = part_of {
                    write!(f, " as part {} of #{}", part.part, part.whole)?;
                } else if let Some(reason) = self.reasons[*value as usize] {
                    write!(f, " ({reason})")?;
                }
            }
            writeln!(f)?;
        }
        write!(f, "in no group:{others}")
    }
}

/// One line a value, then one a kernel, in no particular order.
impl fmt::Display for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, value) in self.values.iter().enumerate() {
            write!(f, "v{number}: {} × {}", value.n_elems, value.dtype)?;
            match value.input {
                Some((idx, donated)) => writeln!(f, ", input {idx}{}", if donated { ", donated" } else { "" })?,
                None => writeln!(f)?,
            }
        }
        self.steps.iter().enumerate().try_for_each(|(i, step)| writeln!(f, "k{i}: {step}"))?;
        write!(f, "outputs:")?;
        self.outputs.iter().try_for_each(|value| write!(f, " v{value}"))
    }
}

/// `v2 over v0 <- v1: map [8]: …`: what it writes, and over what, from what, and how; then the nodes that may fail.
impl fmt::Display for LaunchDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (output, value) in self.writes.iter().enumerate() {
            write!(f, "{}v{value}", if output > 0 { " " } else { "" })?;
            if let Some((_, base)) = self.bases().find(|base| base.0 as usize == output) {
                write!(f, " over v{base}")?;
            }
        }
        write!(f, " <-")?;
        self.reads.iter().try_for_each(|value| write!(f, " v{value}"))?;
        write!(f, ": {}", self.text())?;
        if let Some(whole) = self.part_of {
            write!(f, ", part of cut {whole}")?;
        }
        if !self.may_fail.is_empty() {
            let when = if self.first { ", before anything is committed" } else { "" };
            write!(f, ", may fail at {:?}{when}", self.may_fail)?;
        }
        Ok(())
    }
}
