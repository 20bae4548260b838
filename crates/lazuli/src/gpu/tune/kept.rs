//! What was found, in memory and on disk, beside the pipelines. A file that is damaged, foreign or from another version
//! costs nothing but speed: what is not understood in it is passed over.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::TuneMode;
use crate::cpu::processor;
use crate::gpu::disk;
use crate::log::{self, Topic};
use crate::target::variants::{Class, Tuned, Variant, named};

/// What a file's text starts with; the number changes when variants of the same name become others.
const HEAD: &str = "lazuli tuning 1";

/// What tuning found on a device.
pub struct Tuning {
    pub mode: TuneMode,
    /// What tells this adapter and driver from others, and the processor where the driver runs on it.
    key: String,
    path: Option<PathBuf>,
    tuned: Mutex<Arc<Tuned>>,
}

impl Tuning {
    /// What earlier programs found on this adapter with this driver.
    pub fn open(info: &wgpu::AdapterInfo) -> Tuning {
        let processor = if info.device_type == wgpu::DeviceType::Cpu { processor() } else { "" };
        let words = [&*info.name, &*info.driver, &*info.driver_info, processor];
        let key = format!("{} {:?} {:x}:{:x}", words.join(" "), info.backend, info.vendor, info.device);
        let key: String = key.chars().filter(|c| !c.is_control()).collect();
        let path = disk::path(&key, "tuned");
        let mode = TuneMode::of_environment();
        let tuned = path.as_deref().and_then(disk::load).map_or(Tuned::default(), |bytes| read(&bytes, &key));
        Tuning { mode, key, path, tuned: Mutex::new(Arc::new(tuned)) }
    }

    /// Nothing yet, and nothing kept.
    #[cfg(test)]
    pub fn in_memory(mode: TuneMode) -> Tuning {
        Tuning { mode, key: String::new(), path: None, tuned: Mutex::default() }
    }

    /// What was found so far.
    pub fn tuned(&self) -> Arc<Tuned> {
        self.lock().clone()
    }

    /// Whether a class was measured.
    pub fn knows(&self, class: &Class) -> bool {
        self.lock().by_class.contains_key(class)
    }

    /// Takes a variant for a class from now on.
    pub fn note(&self, class: Class, variant: &'static Variant) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let day = day(now.as_secs() / 86_400);
        Arc::make_mut(&mut *self.lock()).by_class.insert(class, (variant, day));
    }

    /// Takes so many workgroups to fill the device from now on.
    pub fn note_full_groups(&self, n_groups: usize) {
        Arc::make_mut(&mut *self.lock()).full_groups = Some(n_groups);
    }

    /// Writes what was found to disk.
    pub fn save(&self) {
        let Some(path) = &self.path else { return };
        if let Err(error) = disk::store(path, text(&self.tuned(), &self.key).as_bytes()) {
            log::show(Topic::Tune, || format!("{} was not written: {error}", path.display()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Tuned>> {
        self.tuned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the line starts with that says how many workgroups fill the device.
const FULL_GROUPS: &str = "full groups\t";

/// The most that is believed to fill a device.
const MOST_FULL_GROUPS: usize = 1 << 16;

/// A head, the adapter, how many workgroups fill it, then a line per class: class, variant, day, between tabs.
fn text(tuned: &Tuned, key: &str) -> String {
    let line = |(class, (variant, day)): (&Class, &(&Variant, String))| format!("{class}\t{}\t{day}\n", variant.name);
    let full = tuned.full_groups.map_or(String::new(), |n| format!("{FULL_GROUPS}{n}\n"));
    format!("{HEAD}\n{key}\n{full}{}", tuned.by_class.iter().map(line).collect::<String>())
}

/// What of a file can be understood.
fn read(bytes: &[u8], key: &str) -> Tuned {
    let mut tuned = Tuned::default();
    let mut lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
    if lines.next() != Some(HEAD) || lines.next() != Some(key) {
        log::show(Topic::Tune, || "a tuning file of another version or adapter is ignored".to_string());
        return tuned;
    }
    for line in lines {
        let full = line.strip_prefix(FULL_GROUPS).and_then(|n| n.parse().ok());
        if let Some(n) = full.filter(|n| (1..=MOST_FULL_GROUPS).contains(n)) {
            tuned.full_groups = Some(n);
            continue;
        }
        match read_line(line) {
            Some((class, variant, day)) => drop(tuned.by_class.insert(class, (variant, day))),
            None => log::show(Topic::Tune, || format!("{line:?} in a tuning file is ignored")),
        }
    }
    tuned
}

fn read_line(line: &str) -> Option<(Class, &'static Variant, String)> {
    let [class, variant, day] = <[&str; 3]>::try_from(line.split('\t').collect::<Vec<_>>()).ok()?;
    // People read it in `explain`: it is a day and nothing else.
    let is_day = day.len() == 10 && day.chars().all(|c| c.is_ascii_digit() || c == '-');
    Some((Class::parse(class)?, named(variant)?, is_day.then(|| day.to_string())?))
}

/// The day that comes so many days after the first of January 1970.
fn day(mut days: u64) -> String {
    let is_leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + is_leap(year) as u64 {
        days -= 365 + is_leap(year) as u64;
        year += 1;
    }
    let mut lengths = [31, 28 + is_leap(year) as u64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate();
    let month = lengths.find_map(|(month, length)| match days < length {
        true => Some(month + 1),
        false => {
            days -= length;
            None
        }
    });
    format!("{year:04}-{:02}-{:02}", month.unwrap_or(12), days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::target::variants::{OperandLayout, VARIANTS};

    fn class() -> Class {
        let lies = |transposed| OperandLayout { dtype: DType::F16, transposed };
        Class { batch: 1, m: 8, k: 1024, n: 4096, a: lies(false), b: lies(true) }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut tuned = Tuned::default();
        for (variant, m) in VARIANTS.into_iter().zip([1, 2, 4, 8, 16, 64, 256, 1024]) {
            tuned.by_class.insert(Class { m, ..class() }, (variant, "2026-11-16".into()));
        }
        assert_eq!(read(text(&tuned, "gpu").as_bytes(), "gpu"), tuned);
        tuned.full_groups = Some(640);
        assert_eq!(read(text(&tuned, "gpu").as_bytes(), "gpu"), tuned);
    }

    #[test]
    fn another_adapter_or_version_is_ignored() {
        let mut tuned = Tuned::default();
        tuned.by_class.insert(class(), (VARIANTS[0], "2026-11-16".into()));
        let text = text(&tuned, "gpu");
        assert_eq!(read(text.as_bytes(), "another gpu"), Tuned::default());
        assert_eq!(read(text.replace("tuning 1", "tuning 0").as_bytes(), "gpu"), Tuned::default());
    }

    #[test]
    fn lines_that_are_not_understood_are_ignored() {
        let good = format!("{}\t8x8\t2026-11-16", class());
        let bad = [
            good.replace("8x8", "9x9"),
            good.replace("1024", "1025"),
            good.replace("f16", "f64"),
            good.replace("2026-11-16", "\u{1b}[31mred"),
            good.replace('\t', " "),
            format!("{good}\tmore"),
            "\0\0\0".to_string(),
            "1 2 3".repeat(10_000),
            format!("{FULL_GROUPS}0"),
            format!("{FULL_GROUPS}99999999999999999999"),
            format!("{FULL_GROUPS}many"),
        ];
        let file = format!("{HEAD}\ngpu\n{}\n{good}\n", bad.join("\n"));
        let read_back = read(file.as_bytes(), "gpu");
        assert_eq!(read_back.full_groups, None);
        assert_eq!(
            read_back.by_class.into_iter().collect::<Vec<_>>(),
            [(class(), (named("8x8").unwrap(), "2026-11-16".into()))]
        );
        assert_eq!(read(&[0xff; 100], "gpu"), Tuned::default());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, expect) in
            [(0, "1970-01-01"), (58, "1970-02-28"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_773, "2026-11-16")]
        {
            assert_eq!(day(days), expect);
        }
    }
}
