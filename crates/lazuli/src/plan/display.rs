//! The text of a plan: one line a slot, one line a launch. Same graph, same bytes.

use std::fmt;

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
