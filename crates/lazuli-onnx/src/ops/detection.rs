//! Boxes that overlap less than a bound, chosen one after another on the host, in f64.

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give_host, invalid, size};
use crate::elem::ElemType;
use crate::host::HostData;

pub const ROWS: &[Row] = &[row("NonMaxSuppression", 10, &["center_point_box"], non_max_suppression)];

/// A box by its corners.
#[derive(Clone, Copy)]
struct Corners {
    low: [f64; 2],
    high: [f64; 2],
}

impl Corners {
    fn new(numbers: &[f64], by_centre: bool) -> Corners {
        let [a, b, c, d] = [numbers[0], numbers[1], numbers[2], numbers[3]];
        match by_centre {
            true => Corners { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] },
            // Any two opposite corners.
            false => Corners { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] },
        }
    }

    fn area(&self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The share of both boxes' union that both cover.
    fn overlap(&self, other: &Corners) -> f64 {
        let side = |i: usize| (self.high[i].min(other.high[i]) - self.low[i].max(other.low[i])).max(0.0);
        let both = side(0) * side(1);
        let union = self.area() + other.area() - both;
        if union <= 0.0 { 0.0 } else { both / union }
    }
}

fn non_max_suppression(c: &Call) -> Outputs {
    let (boxes, scores) = (c.host(0)?, c.host(1)?);
    let (&[n_batches, n_boxes, 4], &[_, n_classes, n_scores]) = (&boxes.shape[..], &scores.shape[..]) else {
        return invalid(format!("NonMaxSuppression: boxes {:?}, scores {:?}", boxes.shape, scores.shape));
    };
    if n_scores != n_boxes || scores.shape[0] != n_batches {
        return invalid(format!("NonMaxSuppression: boxes {:?}, scores {:?}", boxes.shape, scores.shape));
    }
    let number = |i: usize| -> Result<Option<f64>, Stop> { if c.has(i) { c.number(i).map(Some) } else { Ok(None) } };
    let most = if c.has(2) { size(c.int(2)?.max(0))? } else { 0 };
    let (most_overlap, least_score) = (number(3)?.unwrap_or(0.0), number(4)?);
    let by_centre = c.attr_int("center_point_box", 0)? != 0;
    let (boxes, scores) = (boxes.to_f64s(), scores.to_f64s());
    let mut chosen: Vec<i64> = Vec::new();
    for batch in 0..n_batches {
        let corners: Vec<Corners> =
            (0..n_boxes).map(|i| Corners::new(&boxes[(batch * n_boxes + i) * 4..][..4], by_centre)).collect();
        for class in 0..n_classes {
            let own = &scores[(batch * n_classes + class) * n_boxes..][..n_boxes];
            let mut order: Vec<usize> =
                (0..n_boxes).filter(|i| least_score.is_none_or(|least| own[*i] > least)).collect();
            // Stable, so that of equal scores the first box comes first.
            order.sort_by(|a, b| own[*b].total_cmp(&own[*a]));
            let mut kept: Vec<usize> = Vec::new();
            for i in order {
                if kept.len() >= most {
                    break;
                }
                if kept.iter().all(|k| corners[i].overlap(&corners[*k]) <= most_overlap) {
                    kept.push(i);
                }
            }
            chosen.extend(kept.iter().flat_map(|i| [batch as i64, class as i64, *i as i64]));
        }
    }
    give_host(ElemType::I64, vec![chosen.len() / 3, 3], HostData::Int(chosen))
}
