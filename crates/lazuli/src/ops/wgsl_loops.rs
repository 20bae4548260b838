//! How many iterations the loops in WGSL functions of rows make: some drivers end loops silently after so many, and plans and
//! schedules keep below that. Knows text; nothing of kernels.

/// Iterations that the loops of functions make per call, at most; of those that make any.
pub struct Iterations<'a> {
    functions: Vec<(&'a str, usize)>,
}

/// Iterations of a loop whose header does not say how many: none makes more than one per bit of a number.
const TRIPS_BY_BITS: usize = 32;

impl<'a> Iterations<'a> {
    /// Of these functions, by name and text.
    pub fn of(functions: impl Iterator<Item = (&'a str, &'a str)>) -> Iterations<'a> {
        let texts: Vec<(&str, &str)> = functions.collect();
        let mut iterations = Iterations { functions: Vec::new() };
        // Functions call functions, so what is known of some says more of others, until nothing is new.
        loop {
            let of_text = |text: &str| own_trips(text).saturating_add(iterations.of_calls(text));
            let is_new = |name: &str, n: usize| n > 0 && !iterations.functions.contains(&(name, n));
            let found: Vec<(&str, usize)> =
                texts.iter().map(|(name, text)| (*name, of_text(body_of(text)))).filter(|f| is_new(f.0, f.1)).collect();
            if found.is_empty() {
                return iterations;
            }
            iterations.functions.retain(|(name, _)| found.iter().all(|f| f.0 != *name));
            iterations.functions.extend(found);
        }
    }

    /// Of the functions of these texts.
    pub fn of_texts(texts: &[&'a str]) -> Iterations<'a> {
        Iterations::of(texts.iter().flat_map(|text| split_functions(text)).map(|text| (name_of(text), text)))
    }

    /// Those of the calls in a text.
    pub fn of_calls(&self, text: &str) -> usize {
        self.of_times(|name| calls_of(text, name).count())
    }

    /// Those of something that calls each function as often as `n_calls` says of its name.
    pub fn of_times(&self, n_calls: impl Fn(&str) -> usize) -> usize {
        let of_one = |(name, iterations): &(&str, usize)| n_calls(name).saturating_mul(*iterations);
        self.functions.iter().map(of_one).fold(0, usize::saturating_add)
    }
}

/// Iterations of the loops in a function's own text. None of them is within another, and none calls another.
fn own_trips(text: &str) -> usize {
    let of_loop = |header: &str| {
        let bound = header.split(';').nth(1).and_then(|condition| condition.split('<').nth(1));
        let bound = bound.and_then(|bound| bound.trim().trim_end_matches('u').parse::<usize>().ok());
        bound.unwrap_or(TRIPS_BY_BITS) + 1
    };
    text.split("for (").skip(1).map(of_loop).fold(0, usize::saturating_add)
}

/// A function's text without its first line, which names it.
fn body_of(function: &str) -> &str {
    function.find('{').map_or("", |at| &function[at..])
}

/// The functions of a text, each from its `fn` to the next.
pub fn split_functions(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find("\nfn ").map_or(rest.len(), |at| at + 1);
        let (function, after) = rest.split_at(end);
        rest = after;
        Some(function)
    })
}

pub fn name_of(function: &str) -> &str {
    let after = function.trim_start_matches("fn ").trim_start();
    &after[..after.find('(').unwrap_or(after.len())]
}

/// Where a text calls the function of this name.
pub fn calls_of<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_call = move |at: &usize| {
        let before = text[..*at].chars().next_back();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        text[at + name.len()..].starts_with('(') && !before.is_some_and(is_word)
    };
    text.match_indices(name).map(|(at, _)| at).filter(is_call)
}
