//! What a GGUF file says about itself: keys with values of thirteen types. Arrays are vectors of Rust's types, so that a
//! vocabulary takes little more memory than its words.

use lazuli::Result;

use crate::fault;

/// Hands the scalar types to a macro: number in files, variant, Rust's type, its bytes.
macro_rules! scalars {
    ($then:ident) => {
        $then! {
            0, U8, u8, 1;
            1, I8, i8, 1;
            2, U16, u16, 2;
            3, I16, i16, 2;
            4, U32, u32, 4;
            5, I32, i32, 4;
            6, F32, f32, 4;
            10, U64, u64, 8;
            11, I64, i64, 8;
            12, F64, f64, 8;
        }
    };
}
pub(super) use scalars;

/// The numbers of the types that are no plain scalars.
pub(super) const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

macro_rules! enums {
    ($($id:literal, $variant:ident, $t:ty, $size:literal;)*) => {
        /// A value of a GGUF file's metadata.
        ///
        /// ```
        /// use lazuli_io::GgufValue;
        /// assert_eq!(GgufValue::from(3u32), GgufValue::U32(3));
        /// assert_eq!(GgufValue::from("three").to_string(), "three");
        /// assert_eq!(GgufValue::from(vec![1.0f32, 2.0]).to_string(), "an array of 2 × f32");
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        pub enum GgufValue {
            $(#[doc = concat!("Of type ", stringify!($t), ".")] $variant($t),)*
            /// True or false.
            Bool(bool),
            /// UTF-8.
            String(String),
            /// Values of one type.
            Array(GgufArray),
        }

        /// An array of a GGUF file's metadata: values of one type, which may be arrays again.
        ///
        /// ```
        /// use lazuli_io::GgufArray;
        /// let nested = GgufArray::Array(vec![GgufArray::U8(vec![1, 2]), GgufArray::U8(vec![])]);
        /// assert_eq!((nested.len(), nested.is_empty()), (2, false));
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        pub enum GgufArray {
            $(#[doc = concat!("Of type ", stringify!($t), ".")] $variant(Vec<$t>),)*
            /// Of true and false.
            Bool(Vec<bool>),
            /// Of UTF-8.
            String(Vec<String>),
            /// Of arrays.
            Array(Vec<GgufArray>),
        }

        impl GgufValue {
            /// The number of its type in files.
            pub(super) fn type_id(&self) -> u32 {
                match self {
                    $(GgufValue::$variant(_) => $id,)*
                    GgufValue::Bool(_) => BOOL,
                    GgufValue::String(_) => STRING,
                    GgufValue::Array(_) => ARRAY,
                }
            }
        }

        impl GgufArray {
            /// The number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(GgufArray::$variant(items) => items.len(),)*
                    GgufArray::Bool(items) => items.len(),
                    GgufArray::String(items) => items.len(),
                    GgufArray::Array(items) => items.len(),
                }
            }

            /// The number of its elements' type in files.
            pub(super) fn type_id(&self) -> u32 {
                match self {
                    $(GgufArray::$variant(_) => $id,)*
                    GgufArray::Bool(_) => BOOL,
                    GgufArray::String(_) => STRING,
                    GgufArray::Array(_) => ARRAY,
                }
            }
        }

        /// What the type with this number is called; None if there is none.
        pub(super) fn type_name(id: u32) -> Option<&'static str> {
            match id {
                $($id => Some(stringify!($t)),)*
                BOOL => Some("bool"),
                STRING => Some("string"),
                ARRAY => Some("array"),
                _ => None,
            }
        }

        $(
            impl From<$t> for GgufValue {
                fn from(value: $t) -> GgufValue {
                    GgufValue::$variant(value)
                }
            }

            impl From<Vec<$t>> for GgufValue {
                fn from(items: Vec<$t>) -> GgufValue {
                    GgufValue::Array(GgufArray::$variant(items))
                }
            }

            impl<'a> FromGguf<'a> for &'a [$t] {
                const WANTED: &'static str = concat!("an array of ", stringify!($t));
                fn from_gguf(value: &'a GgufValue) -> Option<&'a [$t]> {
                    match value {
                        GgufValue::Array(GgufArray::$variant(items)) => Some(items),
                        _ => None,
                    }
                }
            }
        )*
    };
}
scalars!(enums);

impl GgufArray {
    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Display for GgufValue {
    /// The value; of an array how many of which type.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GgufValue::String(text) => f.write_str(text),
            GgufValue::Bool(value) => write!(f, "{value}"),
            GgufValue::Array(items) => {
                write!(f, "an array of {} × {}", items.len(), type_name(items.type_id()).unwrap_or_default())
            }
            // With the digits that tell it from other f32, not with those of an f64.
            GgufValue::F32(value) => write!(f, "{value}"),
            number => match (number.integer(), number.float()) {
                (Some(value), _) => write!(f, "{value}"),
                (_, value) => write!(f, "{}", value.unwrap_or_default()),
            },
        }
    }
}

impl GgufValue {
    /// Its type and, if it is short, its value, as errors tell it: `the u32 30`, `a string`.
    pub(super) fn described(&self) -> String {
        match self {
            GgufValue::String(_) => "a string".to_string(),
            GgufValue::Array(_) => self.to_string(),
            value => format!("the {} {value}", type_name(value.type_id()).unwrap_or_default()),
        }
    }
}

impl From<bool> for GgufValue {
    fn from(value: bool) -> GgufValue {
        GgufValue::Bool(value)
    }
}

impl From<String> for GgufValue {
    fn from(value: String) -> GgufValue {
        GgufValue::String(value)
    }
}

impl From<&str> for GgufValue {
    fn from(value: &str) -> GgufValue {
        GgufValue::String(value.into())
    }
}

impl From<Vec<bool>> for GgufValue {
    fn from(items: Vec<bool>) -> GgufValue {
        GgufValue::Array(GgufArray::Bool(items))
    }
}

impl From<Vec<String>> for GgufValue {
    fn from(items: Vec<String>) -> GgufValue {
        GgufValue::Array(GgufArray::String(items))
    }
}

impl From<GgufArray> for GgufValue {
    fn from(items: GgufArray) -> GgufValue {
        GgufValue::Array(items)
    }
}

/// What a value of metadata may be read as: an integer of any width if it fits, a float, `bool`, `&str`, and slices or
/// vectors of them.
///
/// ```
/// use lazuli_io::{FromGguf, GgufValue};
/// assert_eq!(u8::from_gguf(&GgufValue::U64(255)), Some(255));
/// assert_eq!(u8::from_gguf(&GgufValue::U64(256)), None);
/// assert_eq!(Vec::<i64>::from_gguf(&GgufValue::from(vec![1u8, 2])), Some(vec![1, 2]));
/// ```
pub trait FromGguf<'a>: Sized {
    /// What is wanted, in words.
    const WANTED: &'static str;
    /// The value as this type; None if it is none.
    fn from_gguf(value: &'a GgufValue) -> Option<Self>;
}

impl GgufValue {
    fn integer(&self) -> Option<i128> {
        Some(match self {
            GgufValue::U8(v) => (*v).into(),
            GgufValue::I8(v) => (*v).into(),
            GgufValue::U16(v) => (*v).into(),
            GgufValue::I16(v) => (*v).into(),
            GgufValue::U32(v) => (*v).into(),
            GgufValue::I32(v) => (*v).into(),
            GgufValue::U64(v) => (*v).into(),
            GgufValue::I64(v) => (*v).into(),
            _ => return None,
        })
    }

    fn float(&self) -> Option<f64> {
        match self {
            GgufValue::F32(v) => Some((*v).into()),
            GgufValue::F64(v) => Some(*v),
            _ => None,
        }
    }
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl<'a> FromGguf<'a> for $t {
            const WANTED: &'static str = stringify!($t);
            fn from_gguf(value: &'a GgufValue) -> Option<$t> {
                value.integer().and_then(|v| <$t>::try_from(v).ok())
            }
        }

        impl<'a> FromGguf<'a> for Vec<$t> {
            const WANTED: &'static str = concat!("an array of integers that fit ", stringify!($t));
            fn from_gguf(value: &'a GgufValue) -> Option<Vec<$t>> {
                fn all<S: Copy>(items: &[S]) -> Option<Vec<$t>> where $t: TryFrom<S> {
                    items.iter().map(|v| <$t>::try_from(*v).ok()).collect()
                }
                match value {
                    GgufValue::Array(GgufArray::U8(items)) => all(items),
                    GgufValue::Array(GgufArray::I8(items)) => all(items),
                    GgufValue::Array(GgufArray::U16(items)) => all(items),
                    GgufValue::Array(GgufArray::I16(items)) => all(items),
                    GgufValue::Array(GgufArray::U32(items)) => all(items),
                    GgufValue::Array(GgufArray::I32(items)) => all(items),
                    GgufValue::Array(GgufArray::U64(items)) => all(items),
                    GgufValue::Array(GgufArray::I64(items)) => all(items),
                    _ => None,
                }
            }
        }
    )*};
}
integers!(u8 i8 u16 i16 u32 i32 u64 i64 usize);

impl<'a> FromGguf<'a> for f32 {
    const WANTED: &'static str = "f32";
    fn from_gguf(value: &'a GgufValue) -> Option<f32> {
        value.float().map(|v| v as f32)
    }
}

impl<'a> FromGguf<'a> for f64 {
    const WANTED: &'static str = "f64";
    fn from_gguf(value: &'a GgufValue) -> Option<f64> {
        value.float()
    }
}

impl<'a> FromGguf<'a> for bool {
    const WANTED: &'static str = "bool";
    fn from_gguf(value: &'a GgufValue) -> Option<bool> {
        match value {
            GgufValue::Bool(v) => Some(*v),
            _ => None,
        }
    }
}

impl<'a> FromGguf<'a> for &'a str {
    const WANTED: &'static str = "string";
    fn from_gguf(value: &'a GgufValue) -> Option<&'a str> {
        match value {
            GgufValue::String(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromGguf<'a> for &'a [String] {
    const WANTED: &'static str = "an array of strings";
    fn from_gguf(value: &'a GgufValue) -> Option<&'a [String]> {
        match value {
            GgufValue::Array(GgufArray::String(items)) => Some(items),
            _ => None,
        }
    }
}

impl<'a> FromGguf<'a> for &'a [bool] {
    const WANTED: &'static str = "an array of bool";
    fn from_gguf(value: &'a GgufValue) -> Option<&'a [bool]> {
        match value {
            GgufValue::Array(GgufArray::Bool(items)) => Some(items),
            _ => None,
        }
    }
}

/// The metadata of a GGUF file, in the order of the file.
///
/// ```
/// # use lazuli_io::{Gguf, GgufWriter};
/// # let mut file = GgufWriter::new();
/// # file.set("llama.block_count", 30u32);
/// # let file = Gguf::from_bytes(file.to_bytes()?)?;
/// let metadata = file.metadata();
/// assert_eq!(metadata.get::<usize>("llama.block_count")?, 30);
/// assert_eq!(metadata.find::<&str>("general.name")?, None);
/// let error = metadata.get::<&str>("llama.block_count").unwrap_err();
/// assert!(error.to_string().contains("`llama.block_count` is the u32 30, not a string"));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GgufMetadata {
    entries: Vec<(String, GgufValue)>,
    /// Places in `entries`, ordered by key.
    order: Vec<u32>,
}

impl GgufMetadata {
    /// Of entries whose keys differ.
    pub(super) fn new(entries: Vec<(String, GgufValue)>) -> Result<GgufMetadata> {
        let order = super::ordered("keys of metadata", &entries, |(key, _)| key)?;
        Ok(GgufMetadata { entries, order })
    }

    /// The value of a key as `T`; an error if there is none, or if it is something else.
    #[track_caller]
    pub fn get<'a, T: FromGguf<'a>>(&'a self, key: &str) -> Result<T> {
        let _caller = fault::caller();
        self.find(key)?.ok_or_else(|| fault::parse("gguf", format!("the file has no metadata `{key}`")))
    }

    /// The value of a key as `T`; None if there is none, an error if it is something else.
    #[track_caller]
    pub fn find<'a, T: FromGguf<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let _caller = fault::caller();
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_gguf(value) {
            Some(value) => Ok(Some(value)),
            None => {
                let article = if T::WANTED.starts_with("an ") { "" } else { "a " };
                let message = format!("metadata `{key}` is {}, not {article}{}", value.described(), T::WANTED);
                Err(fault::parse("gguf", message))
            }
        }
    }

    /// The value of a key, whatever its type.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufValue, GgufWriter};
    /// # let mut file = GgufWriter::new();
    /// # file.set("a", true);
    /// # let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.metadata().value("a"), Some(&GgufValue::Bool(true)));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        let found = self.order.binary_search_by(|i| self.entries[*i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.order[found] as usize].1)
    }

    /// All keys and values, in the order of the file.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// # let mut file = GgufWriter::new();
    /// # file.set("b", 1u8);
    /// # file.set("a", 2u8);
    /// # let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    /// assert_eq!(keys, ["b", "a"]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &GgufValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }
}
