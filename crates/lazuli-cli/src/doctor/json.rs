//! Values that are printed as JSON.

use std::fmt;

/// A value.
#[derive(Clone, Debug)]
pub enum Json {
    Null,
    Bool(bool),
    Whole(u64),
    /// What is not finite is null: JSON has no word for it.
    Number(f64),
    Text(String),
    List(Vec<Json>),
    /// Names are our own and need no escapes.
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// A text.
    pub fn text(text: impl Into<String>) -> Json {
        Json::Text(text.into())
    }

    /// A list of what is made of each.
    pub fn list<T>(items: impl IntoIterator<Item = T>, of: impl Fn(T) -> Json) -> Json {
        Json::List(items.into_iter().map(of).collect())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Whole(value) => write!(f, "{value}"),
            Json::Number(value) if value.is_finite() => write!(f, "{value}"),
            Json::Number(_) => f.write_str("null"),
            Json::Text(text) => quoted(text, f),
            Json::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "[" } else { "," })?;
                }
                f.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Json::Object(fields) => {
                for (i, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}\"{name}\":{value}", if i == 0 { "{" } else { "," })?;
                }
                f.write_str(if fields.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_the_standard_has_them() {
        let value = Json::Object(vec![
            ("a", Json::List(vec![Json::Whole(1), Json::Number(0.5), Json::Number(f64::NAN)])),
            ("b", Json::text("a \"b\"\\\n\u{1}µ")),
            ("c", Json::List(vec![])),
            ("d", Json::Object(vec![("e", Json::Bool(true)), ("f", Json::Null)])),
        ]);
        let expect = r#"{"a":[1,0.5,null],"b":"a \"b\"\\\n\u0001µ","c":[],"d":{"e":true,"f":null}}"#;
        assert_eq!(value.to_string(), expect);
    }
}
