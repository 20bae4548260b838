//! Some instructions of a kernel as a kernel of their own, with the memory and the numbers that they use. Knows instructions;
//! decides nothing.

use std::borrow::Cow;

use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::kernel::{Args, Body, Inst, InstOp, Kernel, Reg, RuntimeOffset, Scope, Store};
use crate::plan::lower::LaunchDraft;
use crate::plan::{Limits, ValueId};
use crate::view::IndexMap;

/// The body and the numbers of a loop or a matmul.
pub fn body_of(step: &LaunchDraft) -> (&Body, &Args) {
    let (Kernel::Loop(body) | Kernel::Matmul(body)) = &step.kernel else {
        unreachable!("neither chained products nor routines are cut")
    };
    (body, &step.args)
}

/// What a lane is kept as between kernels, so that it loses nothing.
pub fn stored_as(lane: Lane) -> DType {
    match lane {
        Lane::F32 => DType::F32,
        Lane::I32 => DType::I32,
        Lane::U32 => DType::U32,
    }
}

/// What people call an instruction, if it computes something.
fn name_of(op: &InstOp) -> Option<Cow<'static, str>> {
    Some(match op {
        InstOp::Unary(row, _) => row.name.into(),
        InstOp::Binary(row, ..) => row.name.into(),
        InstOp::Reduce(row, _) => row.name.into(),
        InstOp::Gather { .. } => "gather".into(),
        InstOp::Select(..) => "select".into(),
        InstOp::Cast(_) => "cast".into(),
        InstOp::Custom(op, _) => op.0.name.to_string().into(),
        _ => return None,
    })
}

/// Some instructions of a kernel as a kernel of their own, with the memory and the numbers that they use.
pub struct KernelSlice<'a> {
    step: &'a LaunchDraft,
    limits: &'a Limits,
    /// Per register of the kernel, what it is here.
    pub new_reg: Vec<Option<Reg>>,
    /// Per input, which of the kernel's it is; and the kernel's accesses with what each is here.
    inputs: Vec<Option<u16>>,
    accesses: Vec<(u16, u16)>,
    pub body: Body,
    pub args: Args,
    pub draft: LaunchDraft,
}

impl<'a> KernelSlice<'a> {
    pub fn new(step: &'a LaunchDraft, limits: &'a Limits) -> KernelSlice<'a> {
        KernelSlice {
            step,
            limits,
            new_reg: vec![None; body_of(step).0.insts.len()],
            inputs: Vec::new(),
            accesses: Vec::new(),
            body: Body::default(),
            args: Args::default(),
            draft: LaunchDraft::default(),
        }
    }

    /// Takes over an instruction with all that it needs.
    pub fn take(&mut self, goal: Reg) -> Reg {
        let (body, _) = body_of(self.step);
        let mut wanted = vec![false; goal as usize + 1];
        wanted[goal as usize] = true;
        for reg in (0..wanted.len()).rev() {
            if wanted[reg] && self.new_reg[reg].is_none() {
                body.insts[reg].op.for_each_reg(|r| wanted[r as usize] = true);
            }
        }
        for reg in (0..wanted.len()).filter(|reg| wanted[*reg]) {
            if self.new_reg[reg].is_none() {
                self.new_reg[reg] = Some(self.copy(reg as Reg));
            }
        }
        self.new_reg[goal as usize].expect("just taken")
    }

    /// One instruction, its operands being here.
    fn copy(&mut self, reg: Reg) -> Reg {
        let (body, args) = body_of(self.step);
        let inst = &body.insts[reg as usize];
        let regs = &self.new_reg;
        let mut op = inst.op.with_regs(|r| regs[r as usize].expect("operands come first"));
        match &mut op {
            InstOp::Load { input, access } => {
                (*input, *access) = (self.input(*input), self.access(*access));
            }
            InstOp::Valid { access } | InstOp::Index { access } => *access = self.access(*access),
            InstOp::Gather { input, access, gather, .. } => {
                (*input, *access) = (self.input(*input), self.access(*access));
                self.args.gathers.push(args.gathers[*gather as usize]);
                *gather = self.args.gathers.len() as u16 - 1;
            }
            InstOp::Const(constant) => {
                self.args.consts.push(args.consts[*constant as usize]);
                *constant = self.args.consts.len() as u16 - 1;
            }
            _ => {}
        }
        if self.is_fallible(&op) {
            let before = body.insts[..reg as usize].iter().filter(|inst| self.is_fallible(&inst.op)).count();
            self.draft.may_fail.extend(self.step.may_fail.get(before));
            self.draft.first |= self.step.first;
        }
        self.push(Inst { op, ..inst.clone() })
    }

    fn is_fallible(&self, op: &InstOp) -> bool {
        match op {
            InstOp::Gather { .. } => true,
            InstOp::Custom(..) => self.limits.custom_may_fail,
            _ => false,
        }
    }

    pub fn push(&mut self, inst: Inst) -> Reg {
        self.draft.ops.extend(name_of(&inst.op));
        self.body.insts.push(inst);
        self.body.insts.len() as Reg - 1
    }

    fn input(&mut self, input: u16) -> u16 {
        let (body, _) = body_of(self.step);
        if let Some(known) = self.inputs.iter().position(|known| *known == Some(input)) {
            return known as u16;
        }
        self.bind(self.step.reads[input as usize], body.inputs[input as usize], Some(input))
    }

    /// Binds an input: that of the kernel, or another one.
    fn bind(&mut self, value: ValueId, storage: Storage, input: Option<u16>) -> u16 {
        self.draft.reads.push(value);
        self.body.inputs.push(storage);
        self.inputs.push(input);
        self.inputs.len() as u16 - 1
    }

    /// Binds the operands of a product, which are its first inputs.
    pub fn bind_operands(&mut self) {
        self.input(0);
        self.input(1);
    }

    /// One of the kernel's accesses, as an access of the slice.
    pub fn access(&mut self, access: u16) -> u16 {
        if let Some((_, known)) = self.accesses.iter().find(|known| known.0 == access) {
            return *known;
        }
        let (_, args) = body_of(self.step);
        let new = self.map(args.accesses[access as usize].clone());
        self.move_like(new, access);
        self.accesses.push((access, new));
        new
    }

    fn map(&mut self, map: IndexMap) -> u16 {
        self.args.accesses.push(map);
        self.args.accesses.len() as u16 - 1
    }

    /// Gives an access the run-time offset of one of the kernel's, if that has one.
    pub fn move_like(&mut self, access: u16, like: u16) {
        let (body, args) = body_of(self.step);
        if let Some(idx) = body.offset_of(like) {
            self.args.consts.push(args.consts[body.offsets[idx].constant as usize]);
            self.args.offsets.push(args.offsets[idx]);
            self.body.offsets.push(RuntimeOffset { access, constant: self.args.consts.len() as u16 - 1 });
        }
    }

    /// Loads a value that is stored as the first of these types, as the second of them.
    pub fn load(&mut self, value: ValueId, (stored, dtype): (DType, DType), scope: Scope, map: IndexMap) -> Reg {
        let (input, access) = (self.bind(value, stored.into(), None), self.map(map));
        self.push(Inst { op: InstOp::Load { input, access }, dtype, scope })
    }

    /// Stores a value through a map of its own: no load may be met by the index space as it is. Gives the access.
    pub fn store(&mut self, value: Reg, to: ValueId, dtype: DType, map: IndexMap) -> u16 {
        let access = self.map(map);
        self.store_at(value, to, dtype, access);
        access
    }

    /// Stores a value through one of the slice's accesses.
    pub fn store_at(&mut self, value: Reg, to: ValueId, dtype: DType, access: u16) {
        let output = self.body.outputs.len() as u16;
        self.draft.writes.push(to);
        self.body.outputs.push(dtype);
        self.body.stores.push(Store { value, output, access });
    }
}
