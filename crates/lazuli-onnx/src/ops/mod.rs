//! Operators as rows: a name, the oldest operator set whose meaning the row knows, the attributes it understands, and the
//! function that records it. An operator is added in one file. Attributes that a row does not list, and values of attributes
//! that its checks do not know, are refused when a model is loaded, so nothing is ignored in silence.

mod elementwise;
mod activation;
mod casting;
mod movement;
mod shapes;
mod padding;
mod indexing;
mod scatter;
mod reduction;
mod contraction;
mod quantization;
mod integer_products;
mod pooling;
mod normalization;
mod resize;
mod recurrent;
mod attention;
mod spectral;
mod loss;
mod detection;
mod sequence;
mod random;
mod training;

use crate::call::{Call, Outputs, Stop};
use crate::graph::Node;

/// An operator.
pub struct Row {
    pub name: &'static str,
    pub domain: &'static str,
    /// The oldest operator set in which it has the meaning that the row knows.
    pub since: i64,
    pub attrs: &'static [&'static str],
    /// What must hold of a node's attributes. All that fail are told when a model is loaded.
    pub checks: &'static [Check],
    pub run: fn(&Call) -> Outputs,
}

/// Whether an attribute of a node has a value that the row understands.
pub type Check = fn(&Node) -> Result<(), Stop>;

impl Row {
    /// The same row with checks of attributes.
    const fn checked(self, checks: &'static [Check]) -> Row {
        Row { checks, ..self }
    }

    /// Whether a run may give other numbers than the run before.
    pub fn is_random(&self) -> bool {
        random::ROWS.iter().any(|row| std::ptr::eq(row, self))
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// An operator of ONNX's own domain.
const fn row(name: &'static str, since: i64, attrs: &'static [&'static str], run: fn(&Call) -> Outputs) -> Row {
    Row { name, domain: "", since, attrs, checks: &[], run }
}

const TABLES: &[&[Row]] = &[
    elementwise::ROWS,
    activation::ROWS,
    casting::ROWS,
    movement::ROWS,
    shapes::ROWS,
    padding::ROWS,
    indexing::ROWS,
    scatter::ROWS,
    reduction::ROWS,
    contraction::ROWS,
    quantization::ROWS,
    integer_products::ROWS,
    pooling::ROWS,
    normalization::ROWS,
    resize::ROWS,
    recurrent::ROWS,
    attention::ROWS,
    spectral::ROWS,
    loss::ROWS,
    detection::ROWS,
    sequence::ROWS,
    random::ROWS,
    training::ROWS,
];

/// The row of an operator.
pub fn find(domain: &str, name: &str) -> Option<&'static Row> {
    TABLES.iter().flat_map(|table| table.iter()).find(|row| row.name == name && row.domain == domain)
}
