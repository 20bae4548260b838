//! Kernels written by hand, run and compared with loops that do one element after another. Numbers are small
//! integers wherever sums are compared, so that every order of adding gives the same bits.

mod kernels;
mod matmuls;
mod random;
mod reference;

use std::sync::{Arc, OnceLock};

use super::Cpu;
use super::threads::Workers;
use crate::backend::{Backend, FailedCheck, Failure, HostBytes, InputNodes, Run};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Buffer;
use crate::kernel::{AccessForm, Args, Body, GatherArgs, Inst, InstOp, Kernel, Order, Reg, Scope, Store};
use crate::ops::{BinaryRow, Isa, ReduceRow, UnaryRow, isa};
use crate::plan::{CompiledKernel, Launch, LaunchStructure, Plan, Slot, SlotId, SlotKind, StageEnd};
use crate::shape::Shape;
use crate::target::{AmxUse, CpuTarget};
use crate::view::{IndexMap, View};

/// Devices with one, two and three threads: all must agree to the bit.
pub fn cpus() -> &'static [Cpu] {
    static CPUS: OnceLock<Vec<Cpu>> = OnceLock::new();
    CPUS.get_or_init(|| [1, 2, 3].map(|n| Cpu::with(Workers::with(n), CpuTarget::new(isa(), n))).into())
}

/// CPU devices whose products of many rows all go through AMX, on the processor if it has AMX, else emulated. None without AVX-512.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn cpus_with_amx() -> Option<&'static [Cpu]> {
    static CPUS: OnceLock<Vec<Cpu>> = OnceLock::new();
    let cpu = |n| Cpu::with(Workers::with(n), CpuTarget { amx: AmxUse::All, ..CpuTarget::new(isa(), n) });
    (isa() == Isa::Avx512).then(|| {
        super::gemm::emulate_amx();
        CPUS.get_or_init(|| [1, 2, 3].map(cpu).into()).as_slice()
    })
}

/// A kernel in the making, with its memory.
#[derive(Clone, Default, Debug)]
pub struct Case {
    pub body: Body,
    pub args: Args,
    pub inputs: Vec<Vec<u8>>,
    /// Per output: how many elements, and the input whose memory it takes, if any.
    pub outputs: Vec<(usize, Option<usize>)>,
    pub constants: Vec<u32>,
    pub matmul: bool,
}

impl Case {
    /// A kernel over these axes.
    pub fn new(outer: &[usize], inner: &[usize], order: Order) -> Case {
        let body = Body { outer_rank: outer.len() as u8, inner_rank: inner.len() as u8, order, ..Body::default() };
        Case { body, args: Args { outer: outer.into(), inner: inner.into(), ..Args::default() }, ..Case::default() }
    }

    /// All axes.
    pub fn space(&self) -> Shape {
        self.args.outer.iter().chain(&self.args.inner).copied().collect()
    }

    /// An input with the bytes of these lanes.
    pub fn input(&mut self, dtype: DType, lanes: &[u32]) -> u16 {
        let mut bytes = vec![0; lanes.len() * dtype.size()];
        reference::write(&mut bytes, dtype, lanes);
        self.inputs.push(bytes);
        self.body.inputs.push(dtype.into());
        self.inputs.len() as u16 - 1
    }

    /// An input of small integers, repeatable.
    pub fn numbers(&mut self, dtype: DType, n: usize, seed: usize) -> u16 {
        let value = |i: usize| {
            ((i * 7919 + seed * 104729) % 13) as f64 - if dtype.is_float() || dtype == DType::I32 { 6.0 } else { 0.0 }
        };
        let lanes: Vec<u32> =
            (0..n).map(|i| dtype.lane_bits(if dtype == DType::Bool { value(i) % 2.0 } else { value(i) })).collect();
        self.input(dtype, &lanes)
    }

    pub fn access(&mut self, map: impl Into<IndexMap>) -> u16 {
        let map = map.into();
        self.body.accesses.push(AccessForm::Chain { n_views: map.views().len() as u8, masked: map.is_masked() });
        self.args.accesses.push(map);
        self.args.accesses.len() as u16 - 1
    }

    pub fn push(&mut self, op: InstOp, dtype: DType, scope: Scope) -> Reg {
        self.body.insts.push(Inst { op, dtype, scope });
        self.body.insts.len() as Reg - 1
    }

    fn join(&self, regs: &[Reg]) -> Scope {
        regs.iter().map(|r| self.body.insts[*r as usize].scope).max().unwrap_or(Scope::Uniform)
    }

    fn dtype(&self, reg: Reg) -> DType {
        self.body.insts[reg as usize].dtype
    }

    pub fn load(&mut self, input: u16, map: impl Into<IndexMap>, scope: Scope) -> Reg {
        let access = self.access(map);
        self.push(InstOp::Load { input, access }, self.body.inputs[input as usize].dtype(), scope)
    }

    pub fn constant(&mut self, dtype: DType, value: f64) -> Reg {
        self.constants.push(dtype.lane_bits(value));
        self.args.consts.push(self.constants.len() as u32 - 1);
        self.push(InstOp::Const(self.args.consts.len() as u16 - 1), dtype, Scope::Uniform)
    }

    pub fn unary(&mut self, row: &'static UnaryRow, x: Reg) -> Reg {
        let dtype = row.gives.dtype(self.dtype(x));
        self.push(InstOp::Unary(row, x), dtype, self.join(&[x]))
    }

    pub fn binary(&mut self, row: &'static BinaryRow, x: Reg, y: Reg) -> Reg {
        let dtype = row.gives.dtype(self.dtype(x));
        self.push(InstOp::Binary(row, x, y), dtype, self.join(&[x, y]))
    }

    pub fn select(&mut self, cond: Reg, a: Reg, b: Reg) -> Reg {
        self.push(InstOp::Select(cond, a, b), self.dtype(a), self.join(&[cond, a, b]))
    }

    pub fn cast(&mut self, x: Reg, dtype: DType) -> Reg {
        self.push(InstOp::Cast(x), dtype, self.join(&[x]))
    }

    pub fn reduce(&mut self, row: &'static ReduceRow, x: Reg) -> Reg {
        self.push(InstOp::Reduce(row, x), row.gives.dtype(self.dtype(x)), Scope::Outer)
    }

    pub fn gather(&mut self, input: u16, map: impl Into<IndexMap>, index: Reg, args: GatherArgs) -> Reg {
        let access = self.access(map);
        self.args.gathers.push(args);
        let gather = self.args.gathers.len() as u16 - 1;
        let scope = if self.body.inner_rank > 0 { Scope::Inner } else { Scope::Outer };
        self.push(InstOp::Gather { input, access, index, gather }, self.body.inputs[input as usize].dtype(), scope)
    }

    /// Stores through a map into an output of `n` elements.
    pub fn store(&mut self, value: Reg, map: impl Into<IndexMap>, n: usize) {
        let access = self.access(map);
        self.body.outputs.push(self.dtype(value));
        self.outputs.push((n, None));
        self.body.stores.push(Store { value, output: self.outputs.len() as u16 - 1, access });
    }

    /// Stores a value of the whole space, row-major.
    pub fn store_all(&mut self, value: Reg) {
        let space = self.space();
        self.store(value, View::contiguous(space), space.n_elems());
    }

    /// Stores an outer value, row-major.
    pub fn store_outer(&mut self, value: Reg) {
        let outer = Shape::from(&self.args.outer[..]);
        self.store(value, View::contiguous(outer), outer.n_elems());
    }

    fn plan(&self) -> Plan {
        let n_inputs = self.inputs.len();
        let donated = |idx: usize| self.outputs.iter().any(|o| o.1 == Some(idx));
        let mut slots: Vec<Slot> = (0..n_inputs)
            .map(|i| Slot {
                kind: SlotKind::Input { idx: i as u32, donated: donated(i) },
                size_bytes: self.inputs[i].len(),
            })
            .collect();
        let mut writes = Vec::new();
        for (output, dtype) in self.outputs.iter().zip(&self.body.outputs) {
            writes.push(SlotId(output.1.unwrap_or(slots.len()) as u32));
            if output.1.is_none() {
                slots.push(Slot { kind: SlotKind::Output, size_bytes: output.0 * dtype.size() });
            }
        }
        let body = Arc::new(self.body.clone());
        let kernel = if self.matmul { Kernel::Matmul(body) } else { Kernel::Loop(body) };
        let structure = LaunchStructure {
            kernel,
            reads: (0..n_inputs as u32).map(SlotId).collect(),
            writes: writes.clone(),
            read_values: Vec::new(),
            write_values: Vec::new(),
            bases: Vec::new(),
            may_fail: Vec::new(),
            ops: Vec::new(),
            part_of: None,
            compiled: CompiledKernel::default(),
        };
        let launch = Launch::new(structure, self.args.clone());
        let stages = vec![StageEnd { launches: 1, outputs: writes.len() }];
        Plan { launches: vec![launch], slots, outputs: writes, stages, ..Plan::default() }
    }

    /// The schedule of the case's plan on a device, as text.
    pub fn schedule(&self, cpu: &Cpu) -> String {
        super::schedule_texts(&self.plan(), &cpu.target).concat()
    }

    /// Runs it on a device.
    pub fn run(&self, cpu: &Cpu) -> Result<(Vec<Vec<u8>>, Option<FailedCheck>)> {
        let upload = |bytes: &Vec<u8>| cpu.upload(HostBytes::new(bytes.clone()));
        let buffers: Vec<Buffer> = self.inputs.iter().map(upload).collect::<Result<_>>()?;
        let outcome = cpu.prepare(Arc::new(self.plan()))?.run(Run {
            inputs: &buffers,
            nodes: InputNodes::default(),
            constants: &self.constants,
            sites: &[],
            read: false,
            stage_done: &|_, _| {},
        })?;
        let mut outputs = Vec::new();
        for (buffer, (output, dtype)) in outcome.outputs.iter().zip(self.outputs.iter().zip(&self.body.outputs)) {
            let mut bytes = vec![0; output.0 * dtype.size()];
            cpu.download(buffer, &mut bytes)?;
            outputs.push(bytes);
        }
        match outcome.failed {
            Some(Failure::Custom(error)) => Err(error),
            Some(Failure::Index(check)) => Ok((outputs, Some(check))),
            None => Ok((outputs, None)),
        }
    }

    /// Runs it with every number of threads and compares each bit with the reference.
    #[track_caller]
    pub fn check(&self) {
        self.check_on(cpus());
    }

    #[track_caller]
    pub fn check_on(&self, cpus: &[Cpu]) {
        let expect = reference::run(self);
        for cpu in cpus {
            let (outputs, failed) = self.run(cpu).unwrap();
            assert_eq!(failed, None);
            self.compare(&outputs, &expect);
        }
    }

    #[track_caller]
    fn compare(&self, outputs: &[Vec<u8>], expect: &[Vec<u8>]) {
        for (i, (got, expect)) in outputs.iter().zip(expect).enumerate() {
            let dtype = self.body.outputs[i];
            let (got, expect) = (reference::read_all(got, dtype), reference::read_all(expect, dtype));
            if let Some(at) = (0..expect.len()).find(|&at| got[at] != expect[at]) {
                let show = |lane: u32| {
                    if dtype.is_float() { format!("{}", f32::from_bits(lane)) } else { format!("{}", lane as i32) }
                };
                let (got, expect) = (show(got[at]), show(expect[at]));
                panic!(
                    "output {i} at {at}: {got}, not {expect}\nouter {:?} inner {:?}\n{:#?}",
                    self.args.outer, self.args.inner, self.body
                );
            }
        }
    }
}
