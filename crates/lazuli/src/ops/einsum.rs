//! Einstein's summation: `"bij,bjk->bik"` read as a recipe of permutes, products and sums. The text is parsed into
//! labels, then operands are contracted one after another from the left. Knows no kernel: matmul and sum do the work.

use std::panic::Location;

use smallvec::SmallVec;

use super::contraction::{product, summed_product};
use super::movement::{broadcast, reshaped};
use super::operand::or_error;
use crate::error::{Error, Result, counted};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

/// Multiplies tensors and sums over the labels that are not in the result, as `numpy.einsum`.
///
/// Each operand has a letter per axis; equal letters are multiplied together, a letter twice in one operand takes the
/// diagonal, and `...` stands for any leading axes, which broadcast. Without `->` the result has the letters that occur
/// once, in alphabetical order. Operands are contracted from left to right.
///
/// ```
/// # use lazuli::{einsum, Device, Tensor};
/// let a = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu()).reshape([2, 2]);
/// assert_eq!(einsum("ij,jk->ik", &[&a, &a]).to_vec::<f32>()?, [2.0, 3.0, 6.0, 11.0]);
/// assert_eq!(einsum("ii", &[&a]).item::<f32>()?, 3.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn einsum(spec: &str, operands: &[&Tensor]) -> Tensor {
    or_error(evaluated(spec, operands))
}

/// One per axis. Letters stand for themselves; the axes of `...` are numbered from the last, below all letters.
type Labels = SmallVec<[u8; MAX_RANK]>;

/// What a spec says, before it has seen the operands.
#[derive(Debug, PartialEq)]
struct Spec {
    inputs: Vec<Term>,
    /// None: the letters that occur once, in order.
    output: Option<Term>,
}

/// The letters of one operand; `dots` is where the ellipsis stands among them.
#[derive(Debug, PartialEq)]
struct Term {
    letters: Labels,
    dots: Option<usize>,
}

/// An operand on its way: distinct labels, one per axis.
#[derive(Clone)]
struct EinsumPart {
    tensor: Tensor,
    labels: Labels,
}

#[track_caller]
fn parse(spec: &str) -> Result<Spec> {
    let (inputs, output) = match spec.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (spec, None),
    };
    let mut terms = Vec::new();
    for term in inputs.split(',') {
        terms.push(parse_term(spec, term)?);
    }
    let output = match output {
        Some(term) => Some(parse_term(spec, term)?),
        None => None,
    };
    if let Some(output) = &output {
        let letters = &output.letters;
        for (i, letter) in letters.iter().enumerate() {
            let name = *letter as char;
            if letters[..i].contains(letter) {
                return Err(Error::parse("einsum", format!("{name} is twice in the result of {spec:?}")));
            }
            if !terms.iter().any(|t| t.letters.contains(letter)) {
                return Err(Error::parse("einsum", format!("{name} is in the result of {spec:?} but in no operand")));
            }
        }
    }
    Ok(Spec { inputs: terms, output })
}

#[track_caller]
fn parse_term(spec: &str, term: &str) -> Result<Term> {
    let mut found = Term { letters: Labels::new(), dots: None };
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...")
            && found.dots.is_none()
        {
            found.dots = Some(found.letters.len());
            rest = after;
            continue;
        }
        match c {
            ' ' => {}
            'a'..='z' | 'A'..='Z' => found.letters.push(c as u8),
            _ => {
                let allowed = "letters, commas, one ... per operand and one ->";
                return Err(Error::parse("einsum", format!("{c:?} in {spec:?} is not understood: only {allowed} are")));
            }
        }
        rest = &rest[c.len_utf8()..];
    }
    Ok(found)
}

impl Term {
    /// One label per axis of an operand of this rank.
    #[track_caller]
    fn labels(&self, spec: &str, shape: &Shape) -> Result<Labels> {
        let n_letters = self.letters.len();
        let fits = if self.dots.is_some() { shape.rank() >= n_letters } else { shape.rank() == n_letters };
        if !fits {
            let message = format!("{spec:?} names {} of an operand of shape {shape}", counted(n_letters, "axis"));
            return Err(Error::shape("einsum", message));
        }
        Ok(self.with_dots(shape.rank() - n_letters))
    }

    /// The labels when `...` stands for `n_dots` axes. Aligned at the last, as broadcasting is.
    fn with_dots(&self, n_dots: usize) -> Labels {
        let mut labels = self.letters.clone();
        if let Some(at) = self.dots {
            labels.insert_many(at, (0..n_dots).rev().map(|i| i as u8));
        }
        labels
    }
}

#[track_caller]
fn evaluated(text: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let spec = parse(text)?;
    if spec.inputs.len() != operands.len() {
        let message = format!("{text:?} is for {}, not {}", counted(spec.inputs.len(), "operand"), operands.len());
        return Err(Error::parse("einsum", message));
    }
    let mut parts = Vec::with_capacity(operands.len());
    let mut n_dots = 0;
    for (term, operand) in spec.inputs.iter().zip(operands) {
        let shape = &operand.node()?.shape;
        let labels = term.labels(text, shape)?;
        n_dots = n_dots.max(shape.rank() - term.letters.len());
        parts.push(diagonal(operand, &labels)?);
    }
    let output = match &spec.output {
        Some(term) => term.with_dots(n_dots),
        None => implied(&spec.inputs, n_dots),
    };
    let sizes = sizes(text, &parts)?;

    let mut parts = parts.into_iter();
    let Some(mut left) = parts.next() else {
        return Err(Error::parse("einsum", "no operands"));
    };
    let rest: Vec<EinsumPart> = parts.collect();
    for (i, right) in rest.iter().enumerate() {
        // A label lives on while the result or a later operand names it.
        let later = &rest[i + 1..];
        let lives = |l: &u8| output.contains(l) || later.iter().any(|p| p.labels.contains(l));
        left = contracted(&left, right, &sizes, lives)?;
    }
    let left = summed(&left, |l| output.contains(l));
    arranged(&left, &output, &sizes)
}

/// Without `->`: the axes of `...`, then the letters that occur once, in alphabetical order.
fn implied(inputs: &[Term], n_dots: usize) -> Labels {
    let all: Vec<u8> = inputs.iter().flat_map(|t| t.letters.iter().copied()).collect();
    let mut once: Labels = all.iter().copied().filter(|l| all.iter().filter(|m| *m == l).count() == 1).collect();
    once.sort_unstable();
    (0..n_dots).rev().map(|i| i as u8).chain(once).collect()
}

/// The size of each label: axes of size 1 give way.
#[track_caller]
fn sizes(text: &str, parts: &[EinsumPart]) -> Result<[usize; 128]> {
    let mut sizes = [1; 128];
    for part in parts {
        for (&label, &size) in part.labels.iter().zip(part.tensor.shape()?) {
            let known = &mut sizes[label as usize];
            if *known != size && *known != 1 && size != 1 {
                let name = if label < MAX_RANK as u8 { "...".to_string() } else { (label as char).to_string() };
                return Err(Error::shape("einsum", format!("{name} of {text:?} is both {known} and {size}")));
            }
            if *known == 1 {
                *known = size;
            }
        }
    }
    Ok(sizes)
}

/// A label that occurs twice walks both its axes at once.
#[track_caller]
fn diagonal(operand: &Tensor, labels: &Labels) -> Result<EinsumPart> {
    let node = operand.node()?;
    let from = node.shape.strides();
    let mut axes: SmallVec<[(usize, isize); MAX_RANK]> = SmallVec::new();
    let mut distinct = Labels::new();
    for (axis, &label) in labels.iter().enumerate() {
        match distinct.iter().position(|l| *l == label) {
            Some(i) if axes[i].0 != node.shape[axis] => {
                let name = label as char;
                return Err(Error::shape("einsum", format!("{name} names axes of different sizes of {}", node.shape)));
            }
            Some(i) => axes[i].1 += from[axis],
            None => {
                distinct.push(label);
                axes.push((node.shape[axis], from[axis]));
            }
        }
    }
    if distinct.len() == labels.len() {
        return Ok(EinsumPart { tensor: operand.clone(), labels: distinct });
    }
    let view = View::from_axes(axes.into_iter(), 0);
    Ok(EinsumPart { tensor: Tensor::viewed(node, view, Location::caller()), labels: distinct })
}

/// Sums over the labels that nobody needs any more.
#[track_caller]
fn summed(part: &EinsumPart, lives: impl Fn(&u8) -> bool) -> EinsumPart {
    let gone: SmallVec<[i32; MAX_RANK]> =
        part.labels.iter().enumerate().filter(|(_, l)| !lives(l)).map(|(i, _)| i as i32).collect();
    if gone.is_empty() {
        return part.clone();
    }
    EinsumPart {
        tensor: part.tensor.sum(&gone[..]),
        labels: part.labels.iter().copied().filter(|l| lives(l)).collect(),
    }
}

/// The part with its axes in the order of `labels`; those it lacks, or has with size 1, are broadcast.
#[track_caller]
fn arranged(part: &EinsumPart, labels: &[u8], sizes: &[usize; 128]) -> Result<Tensor> {
    let node = part.tensor.node()?;
    let shape: Shape = labels.iter().map(|l| sizes[*l as usize]).collect();
    shape.check("einsum")?;
    let from = node.shape.strides();
    let axes = labels.iter().map(|l| match part.labels.iter().position(|p| p == l) {
        Some(i) => (node.shape[i], from[i]),
        None => (1, 0),
    });
    let moved = Tensor::viewed(node, View::from_axes(axes, 0), Location::caller());
    broadcast("einsum", &moved, shape)
}

/// Two operands become one, summed over what both have and nobody needs any more.
#[track_caller]
fn contracted(a: &EinsumPart, b: &EinsumPart, sizes: &[usize; 128], lives: impl Fn(&u8) -> bool) -> Result<EinsumPart> {
    // What only one of them has is summed before, while there is less of it.
    let a = &summed(a, |l| b.labels.contains(l) || lives(l));
    let b = &summed(b, |l| a.labels.contains(l) || lives(l));
    let (shared, left): (Labels, Labels) = a.labels.iter().copied().partition(|l| b.labels.contains(l));
    let right: Labels = b.labels.iter().copied().filter(|l| !a.labels.contains(l)).collect();
    let (batch, inner): (Labels, Labels) = shared.iter().copied().partition(|l| lives(l));
    let join = |groups: [&Labels; 3]| -> Labels { groups.into_iter().flatten().copied().collect() };

    // No sum, or one value per batch: a multiplication (and a reduction), not a matrix product.
    if inner.is_empty() || (left.is_empty() && right.is_empty()) {
        let labels = join([&batch, &left, &right]);
        let all: Labels = labels.iter().chain(&inner).copied().collect();
        let (x, y) = (lined_up(a, &all)?, lined_up(b, &all)?);
        let gone: SmallVec<[i32; MAX_RANK]> = (labels.len()..all.len()).map(|i| i as i32).collect();
        let tensor = if gone.is_empty() { x.mul(&y) } else { summed_product(&x, &y, &gone)? };
        return Ok(EinsumPart { tensor, labels });
    }
    // [batch…, m, k] × [batch…, k, n]; each of m, k and n may stand for several labels or none. What one operand alone
    // has and cannot lie along one axis of it is another batch, in which the other operand is broadcast.
    let mut room = MAX_RANK.saturating_sub(batch.len() + 2);
    let (far_left, left) = far(a, left, sizes, &mut room);
    let (far_right, right) = far(b, right, sizes, &mut room);
    let batch = join([&batch, &far_left, &far_right]);
    let ones = |absent: &Labels| {
        let mut sizes = *sizes;
        absent.iter().for_each(|l| sizes[*l as usize] = 1);
        sizes
    };
    let x = matrix(a, [&batch, &left, &inner], &ones(&far_right))?;
    let y = matrix(b, [&batch, &inner, &right], &ones(&far_left))?;
    let labels = join([&batch, &left, &right]);
    let shape = labels.iter().map(|l| sizes[*l as usize]).collect();
    Ok(EinsumPart { tensor: reshaped("einsum", &product("einsum", &x, &y)?, shape)?, labels })
}

/// Matrices narrower than this are laid side by side in a copy rather than multiplied one by one.
const NARROW: usize = 4;

/// Divides labels of a part into those that are apart from the last ones in memory, and those that are not. At most
/// `room` are apart, and take it up.
fn far(part: &EinsumPart, own: Labels, sizes: &[usize; 128], room: &mut usize) -> (Labels, Labels) {
    let place = |label: &u8| part.labels.iter().position(|l| l == label);
    let is_next = |pair: &[u8]| place(&pair[0]).map(|at| at + 1) == place(&pair[1]);
    let n_far = own.windows(2).rposition(|pair| !is_next(pair)).map_or(0, |at| at + 1);
    let n_near: usize = own[n_far..].iter().map(|l| sizes[*l as usize]).product();
    let n_far = if n_near < NARROW || n_far > *room { 0 } else { n_far };
    *room -= n_far;
    (own[..n_far].into(), own[n_far..].into())
}

/// The part as matrices `[batch…, rows, columns]`, all rows in one axis and all columns in another.
#[track_caller]
fn matrix(part: &EinsumPart, groups: [&Labels; 3], sizes: &[usize; 128]) -> Result<Tensor> {
    let labels: Labels = groups.into_iter().flatten().copied().collect();
    let size = |l: &u8| sizes[*l as usize];
    let [batch, rows, columns] = groups.map(|group| group.iter().map(size));
    let shape = batch.chain([rows.product(), columns.product()]).collect();
    reshaped("einsum", &arranged(part, &labels, sizes)?, shape)
}

/// The part with its axes in the order of `labels` and size 1 for those it lacks, so that a product broadcasts.
#[track_caller]
fn lined_up(part: &EinsumPart, labels: &[u8]) -> Result<Tensor> {
    let mut ones = [1; 128];
    for (label, size) in part.labels.iter().zip(part.tensor.shape()?) {
        ones[*label as usize] = *size;
    }
    arranged(part, labels, &ones)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(text: &str) -> Labels {
        text.bytes().collect()
    }

    #[test]
    fn specs_are_read_as_numpy_reads_them() {
        let term = |text: &str, dots| Term { letters: letters(text), dots };
        let found = parse("ij, jk -> ik").expect("is valid");
        let expect = Spec { inputs: vec![term("ij", None), term("jk", None)], output: Some(term("ik", None)) };
        assert_eq!(found, expect);
        assert_eq!(parse("i...j").expect("is valid").inputs, [term("ij", Some(1))]);
        assert_eq!(parse("i...j").expect("is valid").inputs[0].with_dots(2), Labels::from_slice(b"i\x01\x00j"));
        assert_eq!(implied(&parse("cab,b").expect("is valid").inputs, 0), letters("ac"));
    }

    #[test]
    fn bad_specs_say_what_is_wrong() {
        let message = |spec: &str| parse(spec).expect_err("is invalid").fault().message.clone();
        assert!(message("i1->i").starts_with("'1' in \"i1->i\" is not understood"));
        assert_eq!(message("ij->ii"), "i is twice in the result of \"ij->ii\"");
        assert_eq!(message("ij->k"), "k is in the result of \"ij->k\" but in no operand");
        assert!(message("......").starts_with("'.' in"));
        assert!(message("i->j->k").contains("is not understood"));
    }
}
