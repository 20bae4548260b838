//! Elements in another order: views that kernels read and write through, rows by index, and random bits.

use lazuli::{DType, Device, Tensor};

use super::{ALL, Draft, Form};
use crate::array::Array;
use crate::cell::Cell;
use crate::index::Index;
use crate::join::Join;
use crate::leaf::Leaf;
use crate::map::Map;
use crate::movement::{Cut, Move};
use crate::program::{Op, Program};

pub fn forms() -> Vec<Form> {
    vec![
        Form::new("views and broadcasts", || {
            ALL.into_iter().flat_map(|dtype| [views(dtype), triangles(dtype)]).collect()
        }),
        Form::new("concatenation, rows written", || ALL.map(joins).to_vec()),
        Form::new("gather, embedding, one-hot", || ALL.map(gathers).to_vec()),
        Form::new("random bits", || vec![random([9, 9, 13]), random([3, 1, 4111])]),
    ]
}

/// Each view goes into a sum, so that a kernel reads through it.
fn views(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let x = draft.noise(&[5, 17, 33], dtype, 0);
    let moves = [
        Move::Permute(vec![2, 0, 1]),
        Move::Slice(vec![Cut::Range(None, None, 1), Cut::Range(Some(1), Some(-1), 3), Cut::Range(None, None, -2)]),
        Move::Pad(vec![(1, 0), (0, 2), (3, 1)], 1.0),
        Move::Flip(Some(1)),
        Move::Repeat(vec![2, 1, 2]),
        Move::RowsAt(1, 3, 9),
    ];
    for view in moves {
        let y = draft.op(view, &[x]);
        draft.op(Map::Unary("tracked"), &[y]);
    }
    let column = draft.noise(&[17, 1], dtype, 0);
    draft.op(Map::Binary("maximum"), &[x, column]);
    let turned = draft.op(Move::Transpose(-1, -2), &[x]);
    draft.op(Map::Binary("minimum"), &[turned, turned]);
    draft.done()
}

fn triangles(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let x = draft.noise(&[41, 37], dtype, 0);
    for view in [Move::Tril(1), Move::Triu(-3), Move::Diagonal, Move::T] {
        draft.op(view, &[x]);
    }
    draft.done()
}

fn joins(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let (x, y) = (draft.noise(&[7, 5, 9], dtype, 0), draft.noise(&[7, 3, 9], dtype, 0));
    draft.op(Join::Cat(1), &[x, y, x]);
    draft.op(Join::Stack(-1), &[x, x]);
    draft.op(Join::WriteRows(1, 2), &[x, y]);
    draft.done()
}

fn gathers(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let x = draft.noise(&[100, 67], dtype, 0);
    let named = draft.noise(&[9, 67], DType::I32, 200);
    let words = draft.noise(&[4, 11], DType::U32, 200);
    let columns = draft.noise(&[13], DType::I32, 167);
    draft.op(Index::Gather(0), &[x, named]);
    draft.op(Index::Embedding, &[x, words]);
    draft.op(Index::Select(1), &[x, columns]);
    draft.op(Index::OneHot(100), &[words]);
    draft.done()
}

/// Random numbers, which have the same bits on every device: those of the CPU are expected.
#[derive(Debug)]
struct Uniform([usize; 3]);

impl Uniform {
    fn leaf(&self) -> Leaf {
        Leaf::Rand { shape: self.0.to_vec(), seed: 7 }
    }
}

impl Op for Uniform {
    fn expect(&self, _: &[&Array]) -> Array {
        let values = self.leaf().call(&[], &Device::cpu()).to_vec::<f64>();
        let values = values.unwrap_or_else(|error| panic!("random numbers of the CPU: {error}"));
        Array::new(self.0.to_vec(), DType::F32, values.into_iter().map(Cell::point).collect())
    }

    fn call(&self, _: &[&Tensor], device: &Device) -> Tensor {
        self.leaf().call(&[], device)
    }

    fn text(&self, _: &[&str]) -> String {
        self.leaf().text(&[])
    }
}

fn random(shape: [usize; 3]) -> Program {
    let mut draft = Draft::default();
    let x = draft.op(Uniform(shape), &[]);
    draft.op(Map::Unary("neg"), &[x]);
    draft.done()
}
