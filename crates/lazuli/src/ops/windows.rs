//! Numbers along the axes that windows have, of convolutions and pooling: one for all axes or one each, and pairs of what stands
//! before and after.

use std::fmt;

/// A number for each of the axes that a window has: one for all, or one each.
///
/// ```
/// # use lazuli::PerAxis;
/// let (all, each): (PerAxis, PerAxis) = (2.into(), [2, 1].into());
/// assert_ne!(all, each);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerAxis {
    numbers: [usize; 3],
    /// How many were given; 0 for one that stands for all.
    n_given: u8,
}

impl PerAxis {
    pub(super) fn at(&self, axis: usize) -> usize {
        self.numbers[axis]
    }

    pub(super) fn fits(&self, n_axes: usize) -> bool {
        self.n_given == 0 || self.n_given as usize == n_axes
    }
}

impl From<usize> for PerAxis {
    fn from(number: usize) -> PerAxis {
        PerAxis { numbers: [number; 3], n_given: 0 }
    }
}

impl fmt::Display for PerAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.n_given {
            0 => write!(f, "{}", self.numbers[0]),
            n => write!(f, "{:?}", &self.numbers[..n as usize]),
        }
    }
}

macro_rules! per_axis {
    ($($n:literal)*) => {$(
        impl From<[usize; $n]> for PerAxis {
            fn from(given: [usize; $n]) -> PerAxis {
                let mut numbers = [0; 3];
                numbers[..$n].copy_from_slice(&given);
                PerAxis { numbers, n_given: $n }
            }
        }
    )*};
}

per_axis!(1 2 3);

/// How many elements stand before and after each of the axes that a window has: one number for all, one for each axis, or a
/// pair for each.
///
/// ```
/// # use lazuli::Pads;
/// let (all, each, pairs): (Pads, Pads, Pads) = (1.into(), [1, 0].into(), [(0, 1), (2, 0)].into());
/// assert!(all != each && each != pairs);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pads {
    before: PerAxis,
    after: PerAxis,
}

impl Pads {
    pub(super) fn at(&self, axis: usize) -> (usize, usize) {
        (self.before.at(axis), self.after.at(axis))
    }

    pub(super) fn fits(&self, n_axes: usize) -> bool {
        self.before.fits(n_axes)
    }
}

impl fmt::Display for Pads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before == self.after {
            true => write!(f, "{}", self.before),
            false => write!(f, "{} before and {} after", self.before, self.after),
        }
    }
}

impl From<usize> for Pads {
    fn from(number: usize) -> Pads {
        Pads::from(PerAxis::from(number))
    }
}

impl From<PerAxis> for Pads {
    fn from(numbers: PerAxis) -> Pads {
        Pads { before: numbers, after: numbers }
    }
}

macro_rules! pads {
    ($($n:literal)*) => {$(
        impl From<[usize; $n]> for Pads {
            fn from(given: [usize; $n]) -> Pads {
                Pads::from(PerAxis::from(given))
            }
        }
        impl From<[(usize, usize); $n]> for Pads {
            fn from(given: [(usize, usize); $n]) -> Pads {
                Pads { before: given.map(|pair| pair.0).into(), after: given.map(|pair| pair.1).into() }
            }
        }
    )*};
}

pads!(1 2 3);
