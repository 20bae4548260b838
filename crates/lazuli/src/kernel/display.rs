//! The text of a kernel: stable, so that tests, `explain` and bug reports can rely on it.

use std::borrow::Cow;
use std::fmt;

use super::{Args, AxisList, Body, InstOp, Kernel, OperandArgs, Order, Reg, Store};

impl Kernel {
    /// What it computes, as a name: `map_add_tanh_f32`. Profilers show it, so it reads like the plan.
    pub fn name(&self, ops: &[Cow<'static, str>]) -> String {
        let mut name = self.form().to_string();
        let shown: Vec<&Cow<'static, str>> = ops.iter().filter(|op| **op != name).collect();
        for op in shown.iter().take(4) {
            name.push('_');
            name.push_str(op);
        }
        if shown.len() > 4 {
            name.push_str(&format!("_and_{}_more", shown.len() - 4));
        }
        match self.bindings().1.first() {
            Some(dtype) => format!("{name}_{dtype}"),
            None => name,
        }
    }

    /// One line: form, sizes and what is stored.
    pub fn text(&self, args: &Args) -> String {
        let space = |body: &Body| match body.inner_rank {
            0 => format!("{:?}", args.outer),
            _ => {
                let order = if body.order == Order::OuterFast { " by column" } else { "" };
                let pieces = if body.ragged { format!(" of {}", args.limit) } else { String::new() };
                format!("{:?} | {:?}{pieces}{order}", args.outer, args.inner)
            }
        };
        match self {
            Kernel::Loop(body) => format!("{} {}: {}", self.form(), space(body), body.stores_text()),
            Kernel::Matmul(body) => {
                let sizes =
                    args.matmul.as_ref().map_or(String::new(), |m| format!("{:?} {}×{}×{}", m.batch, m.m, m.k, m.n));
                let parts = args.matmul.as_ref().map(|m| m.k_parts).filter(|parts| !parts.is_whole());
                let parts = parts.map_or(String::new(), |parts| format!(" with k in {parts}"));
                let panels = args.matmul.as_ref().and_then(|m| m.panels);
                let panels = panels.map_or(String::new(), |panels| format!(" in panels of {}", panels.width));
                let name = |operand: usize| match body.made[operand] {
                    Some(_) => ["a", "b"][operand],
                    None => ["in0", "in1"][operand],
                };
                let lists = args
                    .matmul
                    .as_ref()
                    .map_or(String::new(), |m| format!("{}{}", lists(name(0), &m.a), lists(name(1), &m.b)));
                let made = |operand: usize| {
                    let made = body.made[operand].as_ref();
                    made.map_or(String::new(), |made| format!(", {} = {{{}}}", name(operand), made.made_text()))
                };
                format!("matmul {sizes}{parts}{panels}{}{}{lists}: {}", made(0), made(1), body.stores_text())
            }
            Kernel::Attention(a) => {
                let sizes = args.attention.as_ref().map_or(String::new(), |x| {
                    let depths: Vec<String> = x.inner.iter().map(|inner| inner.depth.to_string()).collect();
                    format!("{:?} {}×{}×{}×{}", x.batch, x.n_rows, depths.join("+"), x.n_columns, x.n_values)
                });
                let parts = args.attention.as_ref().map(|x| x.column_parts).filter(|parts| !parts.is_whole());
                let parts = parts.map_or(String::new(), |parts| format!(" with columns in {parts}"));
                let softmax = if a.softmax.is_some() { " softmax" } else { "" };
                let stores = |body: &Body| body.stores_text();
                format!(
                    "attention {sizes}{parts}: {} |{softmax} | {} | {}",
                    stores(&a.scores),
                    stores(&a.result),
                    stores(&a.rows)
                )
            }
            Kernel::Routine(r) => format!("routine {}", r.row.name),
            Kernel::Grouped(_) => "grouped".to_string(),
        }
    }
}

/// `, in1 by [3/63, 3/9, 2/1] × [3/18, 4/2]`: sizes and strides of an operand's rows and columns, where they are lists of axes.
fn lists(name: &str, lies: &OperandArgs) -> String {
    let text = |list: &AxisList| {
        let axes: Vec<String> = list.axes().iter().map(|(size, stride)| format!("{size}/{stride}")).collect();
        format!("[{}]", axes.join(", "))
    };
    match lies.steps() {
        Some(_) => String::new(),
        None => format!(", {name} by {} × {}", text(&lies.rows), text(&lies.cols)),
    }
}

impl Body {
    /// `out0 = exp(in0 - max(in0)); …`. Values used more than once are named where they first appear.
    pub fn stores_text(&self) -> String {
        let mut uses = vec![0usize; self.insts.len()];
        self.insts.iter().for_each(|inst| inst.op.for_each_reg(|r| uses[r as usize] += 1));
        self.stores.iter().for_each(|s| uses[s.value as usize] += 1);
        let mut texts: Vec<String> = Vec::with_capacity(self.insts.len());
        let mut lines: Vec<String> = Vec::new();
        for (i, inst) in self.insts.iter().enumerate() {
            let r = |reg: &Reg| texts[*reg as usize].clone();
            let text = match &inst.op {
                InstOp::Load { input, access } => format!("in{input}{}", self.moved_text(*access)),
                InstOp::Valid { .. } => "inside".to_string(),
                InstOp::Index { .. } => "index".to_string(),
                InstOp::Gather { input, index, .. } => format!("in{input}[{}]", r(index)),
                InstOp::Const(c) => format!("c{c}"),
                InstOp::Acc(0) => "a·b".to_string(),
                InstOp::Acc(n) => format!("acc{n}"),
                InstOp::Failed => "failed".to_string(),
                InstOp::Unary(row, x) => format!("{}({})", row.name, r(x)),
                InstOp::Binary(row, x, y) => format!("{}({}, {})", row.name, r(x), r(y)),
                InstOp::Select(c, a, b) => format!("select({}, {}, {})", r(c), r(a), r(b)),
                InstOp::Cast(x) => format!("{}({})", inst.dtype, r(x)),
                InstOp::Custom(op, args) => {
                    let args: Vec<String> = args.iter().map(r).collect();
                    format!("{}({})", op.0.name, args.join(", "))
                }
                InstOp::Reduce(row, x) => format!("{}({})", row.name, r(x)),
            };
            let is_given = matches!(inst.op, InstOp::Const(_) | InstOp::Acc(_) | InstOp::Failed);
            let is_leaf = is_given || matches!(inst.op, InstOp::Load { .. } | InstOp::Index { .. });
            // A name keeps the text of long chains short, too.
            if !is_leaf && (uses[i] > 1 || text.len() > 200) {
                lines.push(format!("r{i} = {text}"));
                texts.push(format!("r{i}"));
            } else {
                texts.push(text);
            }
        }
        let store = |s: &Store| format!("out{}{} = {}", s.output, self.moved_text(s.access), texts[s.value as usize]);
        lines.extend(self.stores.iter().map(store));
        lines.join("; ")
    }

    /// The expression that the map of a made operand stores, as in `mul(in0, in2)`, after the values that it uses more than once.
    fn made_text(&self) -> String {
        self.stores_text().replacen("out0 = ", "", 1)
    }

    /// `[c0..]`, where the place of an access is a constant of the plan.
    fn moved_text(&self, access: u16) -> String {
        let offset = self.offset_of(access).map(|idx| self.offsets[idx].constant);
        offset.map_or(String::new(), |constant| format!("[c{constant}..]"))
    }
}

/// The whole structure, one instruction a line.
impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, made) in ["left", "right"].iter().zip(&self.made) {
            made.iter().try_for_each(|made| write!(f, "  {name} operand:\n{made}"))?;
        }
        for (i, inst) in self.insts.iter().enumerate() {
            writeln!(f, "  r{i}: {} {:?} = {:?}", inst.dtype, inst.scope, inst.op)?;
        }
        for store in &self.stores {
            writeln!(f, "  out{} [{:?}] = r{}", store.output, self.accesses[store.access as usize], store.value)?;
        }
        Ok(())
    }
}
