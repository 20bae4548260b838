//! Models that were split into several files: the first has the metadata, each has a header of its own, and their names tell
//! their numbers, `NAME-00002-of-00003.gguf`.

use std::path::{Path, PathBuf};

use lazuli::Result;

use super::header::Header;
use super::{Gguf, ordered};
use crate::elements;
use crate::fault;
use crate::mapped::Mapped;

/// Which part a file is (from 0) and of how many, as its metadata say.
fn numbers(metadata: &super::GgufMetadata) -> Result<(u16, u16)> {
    let number = metadata.find("split.no")?.unwrap_or(0);
    let count = metadata.find("split.count")?.unwrap_or(1).max(1);
    match number < count {
        true => Ok((number, count)),
        false => {
            Err(fault::parse("gguf", format!("the file says that it is part {number} of {count}, counted from 0")))
        }
    }
}

/// Refuses a part, for want of the others.
pub fn refuse(file: &Gguf) -> Result<()> {
    match numbers(&file.metadata)? {
        (_, 1) => Ok(()),
        (number, count) => {
            let message = format!("the bytes are part {} of {count}: open the first file by its path", number + 1);
            Err(fault::parse("gguf", message))
        }
    }
}

/// Opens the other parts of a file, if it has some.
pub fn join(file: &mut Gguf, path: &Path) -> Result<()> {
    let (number, count) = numbers(&file.metadata).map_err(|error| fault::of_file("gguf", path, &error))?;
    if count == 1 {
        return Ok(());
    }
    let refused = |path: &Path, message: String| fault::parse("gguf", format!("{}: {message}", path.display()));
    let first = named(path, number, 0, count);
    let Some(first) = first else {
        let ending = format!("-{:05}-of-{count:05}.gguf", number + 1);
        let message = format!(
            "it is part {} of {count}, but its name does not end in {ending}: the others are not found",
            number + 1
        );
        return Err(refused(path, message));
    };
    if number > 0 {
        let message = format!("it is part {} of {count}: open the first one, {}", number + 1, first.display());
        return Err(refused(path, message));
    }
    for i in 1..count {
        let Some(path) = named(path, 0, i, count) else { break };
        let bytes = Mapped::open("gguf", &path)?;
        let header = Header::parse(&bytes, i as usize).map_err(|error| fault::of_file("gguf", &path, &error))?;
        let found = numbers(&header.metadata).map_err(|error| fault::of_file("gguf", &path, &error))?;
        if found != (i, count) {
            let message = format!("it says that it is part {} of {}, not {} of {count}", found.0 + 1, found.1, i + 1);
            return Err(refused(&path, message));
        }
        elements::reserve("gguf", &mut file.tensors, header.tensors.len())?;
        file.tensors.extend(header.tensors);
        file.parts.push(bytes);
    }
    if let Some(n) = file.metadata.find::<u64>("split.tensors.count")?
        && n != file.tensors.len() as u64
    {
        let message = format!("the {count} parts have {} tensors together, the first one says {n}", file.tensors.len());
        return Err(refused(path, message));
    }
    file.order = ordered("tensors", &file.tensors, |tensor| &tensor.name)?;
    Ok(())
}

/// The name of part `wanted` of a split file beside part `number`; None if that is not named as parts are.
fn named(path: &Path, number: u16, wanted: u16, count: u16) -> Option<PathBuf> {
    let ending = |number: u16| format!("-{:05}-of-{count:05}.gguf", number as u32 + 1);
    let name = path.file_name()?.to_str()?.strip_suffix(&ending(number))?;
    Some(path.with_file_name(format!("{name}{}", ending(wanted))))
}
