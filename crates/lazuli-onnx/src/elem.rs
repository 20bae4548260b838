//! Element types of ONNX, and which dtype of the engine stores each. The engine has no 64-bit, signed 8-bit or 16-bit types:
//! these are stored in 32 bits, and the element type travels with the value, so that results wrap and are declared as the
//! model says.

use std::fmt;

use lazuli::DType;

/// What an ONNX model says that an element is.
///
/// ```
/// use lazuli::DType;
/// use lazuli_onnx::ElemType;
/// assert_eq!(ElemType::I64.storage(), DType::I32);
/// assert_eq!(ElemType::I64.to_string(), "int64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElemType {
    /// 32-bit float.
    F32,
    /// 64-bit float, stored as f32: values are rounded to it, and a constant of the model beyond f32's range is an error.
    F64,
    /// IEEE half.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 8-bit signed, stored as i32.
    I8,
    /// 16-bit signed, stored as i32.
    I16,
    /// 32-bit signed.
    I32,
    /// 64-bit signed. On the host, where shapes are computed, it is i64 with all its bits. On a device it is stored as i32: a constant
    /// or an input that does not fit is an error; sums and products of a device keep their lower 32 bits, and floats that a
    /// device casts become the nearest i32.
    I64,
    /// 8-bit unsigned.
    U8,
    /// 16-bit unsigned, stored as u32.
    U16,
    /// 32-bit unsigned.
    U32,
    /// 64-bit unsigned, stored as u32 on a device and as i64 on the host, with the same rules.
    U64,
    /// False or true.
    Bool,
}

/// `(code in the file, type, name, storage)`.
const TYPES: &[(i32, ElemType, &str, DType)] = &[
    (1, ElemType::F32, "float", DType::F32),
    (2, ElemType::U8, "uint8", DType::U8),
    (3, ElemType::I8, "int8", DType::I32),
    (4, ElemType::U16, "uint16", DType::U32),
    (5, ElemType::I16, "int16", DType::I32),
    (6, ElemType::I32, "int32", DType::I32),
    (7, ElemType::I64, "int64", DType::I32),
    (9, ElemType::Bool, "bool", DType::Bool),
    (10, ElemType::F16, "float16", DType::F16),
    (11, ElemType::F64, "double", DType::F32),
    (12, ElemType::U32, "uint32", DType::U32),
    (13, ElemType::U64, "uint64", DType::U32),
    (16, ElemType::BF16, "bfloat16", DType::BF16),
];

/// Names of the types that have no storage here, for errors.
const OTHERS: &[(i32, &str)] = &[
    (8, "string"),
    (14, "complex64"),
    (15, "complex128"),
    (17, "float8e4m3fn"),
    (18, "float8e4m3fnuz"),
    (19, "float8e5m2"),
    (20, "float8e5m2fnuz"),
    (21, "uint4"),
    (22, "int4"),
    (23, "float4e2m1"),
    (24, "float8e8m0"),
    (25, "uint2"),
    (26, "int2"),
];

impl ElemType {
    /// The type with this number in files, or the name of a type that is not supported.
    pub(crate) fn from_code(code: i64) -> Result<ElemType, String> {
        if let Some(row) = TYPES.iter().find(|row| row.0 as i64 == code) {
            return Ok(row.1);
        }
        Err(match OTHERS.iter().find(|row| row.0 as i64 == code) {
            Some((_, name)) => format!("element type {name} is not supported"),
            None => format!("{code} is no element type"),
        })
    }

    fn row(self) -> &'static (i32, ElemType, &'static str, DType) {
        TYPES.iter().find(|row| row.1 == self).expect("every type has its row")
    }

    /// The dtype that stores it on a device.
    pub fn storage(self) -> DType {
        self.row().3
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        self.storage().is_float()
    }

    /// The type of a tensor of the engine whose type nobody declared.
    pub(crate) fn of(dtype: DType) -> ElemType {
        match dtype {
            DType::F32 => ElemType::F32,
            DType::F16 => ElemType::F16,
            DType::BF16 => ElemType::BF16,
            DType::I32 => ElemType::I32,
            DType::U32 => ElemType::U32,
            DType::U8 => ElemType::U8,
            DType::Bool => ElemType::Bool,
        }
    }

    /// Its width in bits where it is an integer; 1 for bool.
    pub(crate) fn bits(self) -> Option<u32> {
        Some(match self {
            ElemType::Bool => 1,
            ElemType::I8 | ElemType::U8 => 8,
            ElemType::I16 | ElemType::U16 => 16,
            ElemType::I32 | ElemType::U32 => 32,
            ElemType::I64 | ElemType::U64 => 64,
            _ => return None,
        })
    }

    /// Whether it is a signed integer.
    pub(crate) fn is_signed(self) -> bool {
        matches!(self, ElemType::I8 | ElemType::I16 | ElemType::I32 | ElemType::I64)
    }

    /// An integer reduced to what the type can hold: its lower bits. 64-bit numbers stay as they are.
    pub(crate) fn wrap(self, value: i64) -> i64 {
        match (self, self.bits()) {
            (ElemType::Bool, _) => (value != 0) as i64,
            (_, None | Some(64)) => value,
            (_, Some(bits)) if self.is_signed() => (value << (64 - bits)) >> (64 - bits),
            (_, Some(bits)) => value & ((1i64 << bits) - 1),
        }
    }
}

impl fmt::Display for ElemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().2)
    }
}
