//! The meaning of a kernel, one element at a time. Slow and plain: what everything else is compared with.

use half::{bf16, f16};

use super::Case;
use crate::dtype::DType;
use crate::kernel::{InstOp, MatmulArgs, OperandArgs, Reg, Scope};
use crate::ops::isa;
use crate::view::IndexMap;

/// An element as a lane.
pub fn read(bytes: &[u8], dtype: DType, at: usize) -> u32 {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => u32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap()),
        DType::F16 => f16::from_le_bytes(bytes[at * 2..][..2].try_into().unwrap()).to_f32().to_bits(),
        DType::BF16 => bf16::from_le_bytes(bytes[at * 2..][..2].try_into().unwrap()).to_f32().to_bits(),
        DType::U8 | DType::Bool => bytes[at] as u32,
    }
}

pub fn read_all(bytes: &[u8], dtype: DType) -> Vec<u32> {
    (0..bytes.len() / dtype.size()).map(|i| read(bytes, dtype, i)).collect()
}

fn write_one(bytes: &mut [u8], dtype: DType, at: usize, lane: u32) {
    let x = f32::from_bits(lane);
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => bytes[at * 4..][..4].copy_from_slice(&lane.to_le_bytes()),
        DType::F16 => bytes[at * 2..][..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        DType::BF16 => bytes[at * 2..][..2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        DType::U8 | DType::Bool => bytes[at] = lane as u8,
    }
}

/// Lanes as elements.
pub fn write(bytes: &mut [u8], dtype: DType, lanes: &[u32]) {
    lanes.iter().enumerate().for_each(|(i, lane)| write_one(bytes, dtype, i, *lane));
}

fn coordinates(mut idx: usize, dims: &[usize]) -> Vec<usize> {
    let mut out = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        let size = dims[axis].max(1);
        (out[axis], idx) = (idx % size, idx / size);
    }
    out
}

struct Evaluation<'a> {
    case: &'a Case,
    n_outer: usize,
    n_inner: usize,
    /// Per register, its lanes: one, one per outer index, or one per index.
    values: Vec<Vec<u32>>,
}

impl Evaluation<'_> {
    /// The element of a map at an index; the map says itself over which axes it is.
    fn at(&self, map: &IndexMap, outer: usize, inner: usize) -> Option<usize> {
        let mut all = coordinates(outer, &self.case.args.outer);
        all.extend(coordinates(inner, &self.case.args.inner));
        map.at(&all[..map.shape().rank()])
    }

    fn value(&self, reg: Reg, outer: usize, inner: usize) -> u32 {
        let lanes = &self.values[reg as usize];
        match self.case.body.insts[reg as usize].scope {
            Scope::Uniform => lanes[0],
            Scope::Outer => lanes[outer],
            Scope::Inner => lanes[outer * self.n_inner + inner],
        }
    }

    fn inner_of(&self, outer: usize) -> usize {
        if !self.case.body.ragged {
            return self.n_inner;
        }
        let piece = coordinates(outer, &self.case.args.outer)[0];
        self.n_inner.min(self.case.args.limit.saturating_sub(piece * self.n_inner))
    }

    fn inst(&self, reg: usize, outer: usize, inner: usize) -> u32 {
        let Case { body, args, inputs, constants, .. } = self.case;
        let inst = &body.insts[reg];
        let operand = |r: &Reg| self.value(*r, outer, inner);
        let lane_of = |r: &Reg| body.insts[*r as usize].dtype.lane();
        let element = |input: &u16, at: usize| read(&inputs[*input as usize], body.inputs[*input as usize].dtype(), at);
        match &inst.op {
            InstOp::Load { input, access } => {
                self.at(&args.accesses[*access as usize], outer, inner).map_or(0, |at| element(input, at))
            }
            InstOp::Valid { access } => self.at(&args.accesses[*access as usize], outer, inner).is_some() as u32,
            InstOp::Index { access } => self.at(&args.accesses[*access as usize], outer, inner).unwrap() as u32,
            InstOp::Gather { input, access, index, gather } => {
                let gather = args.gathers[*gather as usize];
                let index = operand(index) as i32 as isize;
                let base = self.at(&args.accesses[*access as usize], outer, inner).unwrap() as isize;
                let inside = (0..gather.bound as isize).contains(&index);
                if inside { element(input, (base + index * gather.stride) as usize) } else { 0 }
            }
            InstOp::Const(idx) => constants[args.consts[*idx as usize] as usize],
            InstOp::Acc(_) => self.acc(outer),
            // A case is one launch: nothing ran before it.
            InstOp::Failed => 0,
            InstOp::Unary(row, x) => {
                let mut y = [0];
                // SAFETY: the loops are those of this machine.
                unsafe { row.cpu.get(lane_of(x)).unwrap()[isa() as usize](&[operand(x)], &mut y) };
                y[0]
            }
            InstOp::Binary(row, x, y) => {
                let mut out = [0];
                // SAFETY: as above.
                unsafe { (row.cpu.get(lane_of(x)).unwrap()[isa() as usize])(&[operand(x)], &[operand(y)], &mut out) };
                out[0]
            }
            InstOp::Select(cond, a, b) => {
                if operand(cond) != 0 {
                    operand(a)
                } else {
                    operand(b)
                }
            }
            InstOp::Cast(x) => cast(operand(x), body.insts[*x as usize].dtype, inst.dtype),
            InstOp::Custom(op, args) => {
                let args: Vec<f32> = args.iter().map(|r| f32::from_bits(operand(r))).collect();
                (op.0.cpu)(&args).to_bits()
            }
            InstOp::Reduce(row, x) => {
                let loops = &row.cpu.get(lane_of(x)).unwrap()[isa() as usize];
                let mut acc = [loops.identity];
                for i in 0..self.inner_of(outer) {
                    // SAFETY: as above.
                    unsafe { (loops.accumulate)(&mut acc, &[self.value(*x, outer, i)]) };
                }
                acc[0]
            }
        }
    }

    fn acc(&self, outer: usize) -> u32 {
        let case = self.case;
        let MatmulArgs { batch, k, a, b, panels, .. } = case.args.matmul.as_deref().unwrap();
        let c = coordinates(outer, &case.args.outer);
        let (batch_idx, row, col) = (&c[..batch.len()], c[batch.len()], c[batch.len() + 1]);
        let element = |input: usize, lies: &OperandArgs, row: usize, col: usize| {
            let at = lies.offset + lies.rows.at(row) + lies.cols.at(col);
            let at = at + batch_idx.iter().zip(&lies.batch).map(|(c, list)| list.at(*c)).sum::<isize>();
            read(&case.inputs[input], case.body.inputs[input].dtype(), at as usize)
        };
        let (b, col) = match panels {
            Some(panels) => {
                let offset = b.offset + (col / panels.width) as isize * panels.stride;
                (&OperandArgs { offset, ..b.clone() }, col % panels.width)
            }
            None => (b, col),
        };
        let pairs = (0..*k).map(|l| (element(0, a, row, l), element(1, b, l, col)));
        if case.body.inputs[0].dtype().is_float() {
            let sum = pairs.fold(0.0, |sum, (x, y)| sum + f32::from_bits(x) as f64 * f32::from_bits(y) as f64);
            return (sum as f32).to_bits();
        }
        pairs.fold(0u32, |sum, (x, y)| sum.wrapping_add(x.wrapping_mul(y)))
    }
}

fn cast(lane: u32, from: DType, to: DType) -> u32 {
    let x = match from.lane() {
        crate::dtype::Lane::F32 => f32::from_bits(lane) as f64,
        crate::dtype::Lane::I32 => lane as i32 as f64,
        crate::dtype::Lane::U32 => lane as f64,
    };
    match to {
        DType::F32 | DType::F16 | DType::BF16 => to.lane_bits(x),
        DType::I32 if from.is_float() => x as i32 as u32,
        DType::U32 if from.is_float() => x as u32,
        DType::U8 if from.is_float() => x as u8 as u32,
        DType::I32 | DType::U32 => lane,
        DType::U8 => lane & 0xff,
        DType::Bool => (x != 0.0) as u32,
    }
}

/// The outputs' bytes.
pub fn run(case: &Case) -> Vec<Vec<u8>> {
    let n_outer: usize = case.args.outer.iter().product();
    let n_inner: usize = case.args.inner.iter().product();
    let mut evaluation = Evaluation { case, n_outer, n_inner, values: Vec::new() };
    for (reg, inst) in case.body.insts.iter().enumerate() {
        let mut lanes = Vec::new();
        match inst.scope {
            Scope::Uniform => lanes.push(evaluation.inst(reg, 0, 0)),
            Scope::Outer => lanes.extend((0..n_outer).map(|o| evaluation.inst(reg, o, 0))),
            Scope::Inner => {
                for o in 0..n_outer {
                    let n = evaluation.inner_of(o);
                    lanes.extend((0..n_inner).map(|i| if i < n { evaluation.inst(reg, o, i) } else { 0 }));
                }
            }
        }
        evaluation.values.push(lanes);
    }
    let mut outputs: Vec<Vec<u8>> = (case.outputs.iter().zip(&case.body.outputs))
        .map(|((n, input), dtype)| input.map_or_else(|| vec![0; n * dtype.size()], |i| case.inputs[i].clone()))
        .collect();
    for store in &case.body.stores {
        let map = &case.args.accesses[store.access as usize];
        let output = &mut outputs[store.output as usize];
        let dtype = case.body.outputs[store.output as usize];
        let inner = if map.shape().rank() > case.args.outer.len() { evaluation.n_inner } else { 1 };
        for o in 0..evaluation.n_outer {
            for i in 0..inner {
                let at = evaluation.at(map, o, i).unwrap();
                write_one(output, dtype, at, evaluation.value(store.value, o, i));
            }
        }
    }
    outputs
}
