//! The graph, one element at a time, in double precision. Floats are never rounded, so that differences mean something.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::Tensor;
use crate::dtype::DType;
use crate::graph::{Node, NodeRef, Op};
use crate::shape::Shape;
use crate::view::IndexMap;

/// Values of nodes, leaves given from outside.
pub struct Oracle {
    known: HashMap<*const Node, Rc<Vec<f64>>>,
}

/// An oracle for which these leaves hold their values, changed as the caller likes.
pub fn with_leaves(leaves: &[Tensor], mut change: impl FnMut(usize, &mut Vec<f64>)) -> Oracle {
    let mut known = HashMap::new();
    for (i, leaf) in leaves.iter().enumerate() {
        let mut values = leaf.to_vec::<f64>().expect("is data");
        change(i, &mut values);
        known.insert(Arc::as_ptr(leaf.node().expect("is data")), Rc::new(values));
    }
    Oracle { known }
}

fn coordinates(mut idx: usize, shape: &Shape) -> Vec<usize> {
    let mut out = vec![0; shape.rank()];
    for axis in (0..shape.rank()).rev() {
        (out[axis], idx) = (idx % shape[axis], idx / shape[axis]);
    }
    out
}

fn linear(at: &[usize], shape: &Shape) -> usize {
    at.iter().zip(shape.strides()).map(|(c, s)| c * s as usize).sum()
}

impl Oracle {
    /// All elements of a tensor.
    pub fn value(mut self, tensor: &Tensor) -> Vec<f64> {
        let node = tensor.node().unwrap_or_else(|e| panic!("{e}"));
        self.node(node).to_vec()
    }

    fn node(&mut self, node: &NodeRef) -> Rc<Vec<f64>> {
        if let Some(known) = self.known.get(&Arc::as_ptr(node)) {
            return known.clone();
        }
        let expr = node.with_expr(|e| (e.op.clone(), e.inputs.to_vec()));
        let values = match expr {
            None => Tensor::new(Ok(node.clone())).to_vec::<f64>().expect("is data"),
            Some((op, inputs)) => {
                let args: Vec<Rc<Vec<f64>>> = inputs.iter().map(|i| self.node(i)).collect();
                apply(&op, node, &inputs, &args)
            }
        };
        let values = Rc::new(values);
        self.known.insert(Arc::as_ptr(node), values.clone());
        values
    }
}

fn apply(op: &Op, node: &NodeRef, inputs: &[NodeRef], args: &[Rc<Vec<f64>>]) -> Vec<f64> {
    let n = node.shape.n_elems();
    let each = |f: &dyn Fn(usize) -> f64| (0..n).map(f).collect::<Vec<f64>>();
    let at = |i: usize| coordinates(i, &node.shape);
    match op {
        Op::Data => unreachable!("data has no recipe"),
        // What blocks are widened to is exact: it is compared with other programs elsewhere.
        Op::Widen(_) => Tensor::new(Ok(node.clone())).to_vec::<f64>().expect("is data"),
        Op::Const(constant) => vec![constant.value; n],
        Op::Index => each(&|i| i as f64),
        Op::Unary(row) => each(&|i| (row.oracle)(args[0][i])),
        Op::Binary(row) => each(&|i| (row.oracle)(args[0][i], args[1][i])),
        Op::Select => each(&|i| if args[0][i] != 0.0 { args[1][i] } else { args[2][i] }),
        Op::Commit => args[1].to_vec(),
        Op::WithRule(..) => args[0].to_vec(),
        Op::Cast => each(&|i| match node.dtype {
            DType::Bool => (args[0][i] != 0.0) as u8 as f64,
            dtype if dtype.is_int() => args[0][i].trunc(),
            _ => args[0][i],
        }),
        Op::Custom(op) => each(&|i| (op.0.cpu)(&args.iter().map(|a| a[i] as f32).collect::<Vec<_>>()) as f64),
        Op::View(view) => each(&|i| args[0][IndexMap::from(**view).at(&at(i)).expect("no mask")]),
        Op::Pad(view) => each(&|i| IndexMap::from(**view).at(&at(i)).map_or(args[1][0], |from| args[0][from])),
        Op::Reduce(row, axes) => {
            let mut out = vec![row.identity; n];
            for (i, x) in args[0].iter().enumerate() {
                let from = coordinates(i, &inputs[0].shape);
                let to: Vec<usize> = (0..from.len()).filter(|a| !axes.contains(*a)).map(|a| from[a]).collect();
                let to = linear(&to, &node.shape);
                out[to] = (row.oracle)(out[to], *x);
            }
            out
        }
        Op::Matmul => {
            let rank = node.shape.rank();
            let k = inputs[0].shape[rank - 1];
            each(&|i| {
                let (mut a, mut b) = (at(i), at(i));
                let product = |l: usize| {
                    (a[rank - 1], b[rank - 2]) = (l, l);
                    args[0][linear(&a, &inputs[0].shape)] * args[1][linear(&b, &inputs[1].shape)]
                };
                (0..k).map(product).sum()
            })
        }
        Op::Gather(axis, _) => each(&|i| {
            let mut from = at(i);
            from[*axis] = args[1][i] as usize;
            args[0][linear(&from, &inputs[0].shape)]
        }),
        Op::Cat(axis) => each(&|i| {
            let mut from = at(i);
            let mut part = 0;
            while from[*axis] >= inputs[part].shape[*axis] {
                from[*axis] -= inputs[part].shape[*axis];
                part += 1;
            }
            args[part][linear(&from, &inputs[part].shape)]
        }),
        Op::RowsAt(axis) => each(&|i| {
            let mut from = at(i);
            from[*axis] += args[1][0] as usize;
            args[0][linear(&from, &inputs[0].shape)]
        }),
        Op::WriteRows(axis) => each(&|i| {
            let mut from = at(i);
            match from[*axis].checked_sub(args[2][0] as usize).filter(|row| *row < inputs[1].shape[*axis]) {
                Some(row) => {
                    from[*axis] = row;
                    args[1][linear(&from, &inputs[1].shape)]
                }
                None => args[0][i],
            }
        }),
        Op::Routine(row, params) => routine(row.name, params[0] as usize, params[1] != 0, node, inputs, args),
    }
}

fn routine(
    name: &str,
    axis: usize,
    descending: bool,
    node: &NodeRef,
    inputs: &[NodeRef],
    args: &[Rc<Vec<f64>>],
) -> Vec<f64> {
    let mut out = args[0].to_vec();
    if name == "scatter_add" {
        for i in 0..args[1].len() {
            let mut to = coordinates(i, &inputs[1].shape);
            let src = args[2][linear(&to, &inputs[2].shape)];
            to[axis] = args[1][i] as usize;
            out[linear(&to, &node.shape)] += src;
        }
        return out;
    }
    let lines = (0..out.len()).filter(|i| coordinates(*i, &node.shape)[axis] == 0);
    for first in lines.collect::<Vec<_>>() {
        let places: Vec<usize> =
            (0..node.shape[axis]).map(|i| first + i * node.shape.strides()[axis] as usize).collect();
        let line: Vec<f64> = places.iter().map(|p| args[0][*p]).collect();
        let mut order: Vec<usize> = (0..line.len()).collect();
        order.sort_by(|a, b| if descending { line[*b].total_cmp(&line[*a]) } else { line[*a].total_cmp(&line[*b]) });
        for (i, place) in places.iter().enumerate() {
            out[*place] = match name {
                "cumsum" => line[..=i].iter().sum(),
                "sort" => line[order[i]],
                "argsort" => order[i] as f64,
                _ => unreachable!("the oracle does not know {name}"),
            };
        }
    }
    out
}
