//! What can go wrong, said once, where the user wrote the op. Knows shapes and source locations; nothing about devices.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::place;
use crate::shape::Shape;

/// What every leaving call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. Cheap to clone: a tensor that failed carries one, and so do all that depend on it.
///
/// ```
/// use lazuli::{Device, Error, Tensor};
/// let cpu = Device::cpu();
/// let a = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
/// let b = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &cpu);
/// let err = (a + b).compute().unwrap_err();
/// assert!(matches!(err, Error::Shape(_)));
/// assert!(err.to_string().starts_with("add: shapes do not broadcast: [2] and [3]"));
/// // `fn main() -> lazuli::Result<()>` shows what `{:?}` does, so that reads the same.
/// assert_eq!(format!("{err:?}"), err.to_string());
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes or axes that do not go together.
    #[error("{0}")]
    Shape(Arc<Fault>),
    /// A dtype the op does not take, or a value that does not fit its dtype.
    #[error("{0}")]
    DType(Arc<Fault>),
    /// An index outside its axis.
    #[error("{0}")]
    Index(Arc<Fault>),
    /// A gradient that cannot be had.
    #[error("{0}")]
    Grad(Arc<Fault>),
    /// No such device, or tensors on different ones.
    #[error("{0}")]
    Device(Arc<Fault>),
    /// More memory than the device will give.
    #[error("{0}")]
    OutOfMemory(Arc<Fault>),
    /// The device went away.
    #[error("{0}")]
    DeviceLost(Arc<Fault>),
    /// Something this device or build cannot do.
    #[error("{0}")]
    Unsupported(Arc<Fault>),
    /// Text or bytes that do not parse.
    #[error("{0}")]
    Parse(Arc<Fault>),
    /// A file that could not be read or written.
    #[error("{0}")]
    Io(Arc<Fault>),
    /// The user's own code (a custom op) panicked.
    #[error("{0}")]
    Custom(Arc<Fault>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The particulars of an [`Error`]: which op, on which shapes, where it was written.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The op's name, as the user called it.
    pub op: String,
    /// What is wrong and what would work: lower-case, no final stop.
    pub message: String,
    /// The shapes concerned, in argument order.
    pub shapes: Vec<Shape>,
    /// The caller's line, where there is one.
    pub at: Option<&'static Location<'static>>,
}

impl Fault {
    /// A fault of `op`, with the caller's location.
    #[track_caller]
    pub fn new(op: impl Into<String>, message: impl Into<String>) -> Fault {
        Fault {
            op: op.into(),
            message: message.into(),
            shapes: Vec::new(),
            at: Some(place::reported_at(Location::caller())),
        }
    }

    /// Adds the shapes concerned.
    pub fn shapes(mut self, shapes: &[&Shape]) -> Fault {
        self.shapes = shapes.iter().map(|s| **s).collect();
        self
    }

    /// Says that it happened at `at` rather than where the fault was made.
    pub fn at(mut self, at: &'static Location<'static>) -> Fault {
        self.at = Some(place::reported_at(at));
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.message)?;
        match self.at {
            Some(at) => write!(f, " ({}:{}:{})", at.file(), at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// A number of things: `1 axis`, `2 axes`, `3 kernels`.
pub(crate) fn counted(n: usize, one: &str) -> String {
    match (n, one) {
        (1, _) => format!("1 {one}"),
        (_, "axis") => format!("{n} axes"),
        _ => format!("{n} {one}s"),
    }
}

/// One constructor per variant, so that raising reads `Error::shape("add", "…")`.
macro_rules! constructors {
    ($($name:ident $variant:ident),*) => {
        impl Error {
            $(
                #[track_caller]
                pub(crate) fn $name(op: impl Into<String>, message: impl Into<String>) -> Error {
                    Error::$variant(Arc::new(Fault::new(op, message)))
                }
            )*

            /// The same error; if it names a line of the engine's own, it names `at` instead: where a call was made whose
            /// work another thread does.
            pub(crate) fn called_at(self, at: &'static Location<'static>) -> Error {
                if self.fault().at.is_some_and(|own| !place::is_inside(own)) {
                    return self;
                }
                let moved = |fault: Arc<Fault>| Arc::new(Fault::clone(&fault).at(at));
                match self {
                    Error::DeviceLost(fault) => Error::DeviceLost(moved(fault)),
                    Error::Io(fault) => Error::Io(moved(fault)),
                    $(Error::$variant(fault) => Error::$variant(moved(fault)),)*
                }
            }

            /// The particulars: op, shapes and place.
            pub fn fault(&self) -> &Fault {
                match self {
                    Error::DeviceLost(fault) | Error::Io(fault) $(| Error::$variant(fault))* => fault,
                }
            }
        }
    };
}

constructors! {
    shape Shape, dtype DType, index Index, grad Grad, device Device, out_of_memory OutOfMemory, unsupported Unsupported,
    parse Parse, custom Custom
}
