//! What was found, as text and as JSON. Knows nothing of users, hosts and folders: what others wrote (drivers, errors) has
//! its paths taken out ([`super::privacy`]).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazuli::gpu::wgpu;
use lazuli::{Device, DeviceKind};
use lazuli_check::Verdict;

use super::json::Json;
use super::privacy::without_paths;
use super::speed::{Speed, Speeds};
use crate::counted;

/// All that was found.
#[derive(Clone, Debug)]
pub struct Report {
    pub devices: Vec<DeviceReport>,
    /// Whether nothing was left out.
    pub is_whole: bool,
}

/// What was found of one device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// The words that open it.
    opened_by: String,
    /// The line that `lazuli devices` prints.
    line: String,
    name: String,
    limits: Vec<(&'static str, String)>,
    properties: Vec<(&'static str, String)>,
    pub forms: Vec<FormReport>,
    pub speeds: Option<Speeds>,
    /// What ended the examination.
    pub error: Option<String>,
    /// How long it took; None until it is done.
    pub seconds: Option<f64>,
    /// Whether kernels had to be compiled, and how many were made or found.
    pub is_cold: bool,
    pub n_compiled: u64,
}

/// What was found of one form.
#[derive(Clone, Debug)]
pub struct FormReport {
    pub name: &'static str,
    pub verdict: Verdict,
    pub seconds: f64,
}

/// The report, whoever has panicked.
pub fn locked(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Report {
    /// Of these devices, of which nothing is known yet.
    pub fn new(devices: impl Iterator<Item = DeviceReport>) -> Report {
        Report { devices: devices.collect(), is_whole: false }
    }

    /// Forms and devices that failed.
    pub fn n_failures(&self) -> usize {
        self.devices.iter().map(DeviceReport::n_failures).sum()
    }

    /// The names of devices on which something failed.
    pub fn failing(&self) -> Vec<&str> {
        self.devices.iter().filter(|device| device.n_failures() > 0).map(|device| &*device.name).collect()
    }

    /// In one line.
    pub fn summary(&self) -> String {
        let n_checked: usize = self.devices.iter().map(|device| device.forms.len()).sum();
        let checked = format!(
            "{} on {}",
            counted(n_checked as u64, "check", "checks"),
            counted(self.devices.len() as u64, "device", "devices")
        );
        let end = if self.is_whole { "" } else { "; interrupted" };
        match self.n_failures() {
            0 => format!("{checked}, all passed{end}"),
            n => format!("{checked}, {n} FAILED{end}"),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Json {
        Json::Object(vec![
            ("lazuli", Json::text(env!("CARGO_PKG_VERSION"))),
            ("os", Json::text(std::env::consts::OS)),
            ("arch", Json::text(std::env::consts::ARCH)),
            ("whole", Json::Bool(self.is_whole)),
            ("failures", Json::Whole(self.n_failures() as u64)),
            ("devices", Json::list(&self.devices, DeviceReport::json)),
        ])
    }
}

impl DeviceReport {
    /// A device before it is examined.
    pub fn new(opened_by: &str, device: &Device) -> DeviceReport {
        DeviceReport {
            opened_by: opened_by.to_string(),
            line: without_paths(&device.info().to_string()),
            name: without_paths(&device.info().name),
            limits: limits(device),
            properties: device.properties(),
            forms: Vec::new(),
            speeds: None,
            error: None,
            seconds: None,
            is_cold: false,
            n_compiled: 0,
        }
    }

    fn n_failures(&self) -> usize {
        self.error.is_some() as usize + self.forms.iter().filter(|form| !form.verdict.failures.is_empty()).count()
    }

    /// The kernels that ran, each once.
    fn kernels(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.forms.iter().flat_map(|form| &form.verdict.kernels).collect();
        all.into_iter().cloned().collect()
    }

    fn json(&self) -> Json {
        let pairs = |pairs: &[(&'static str, String)]| {
            Json::list(pairs, |(name, value)| {
                Json::Object(vec![("name", Json::text(*name)), ("value", Json::text(value))])
            })
        };
        Json::Object(vec![
            ("opened_by", Json::text(&self.opened_by)),
            ("device", Json::text(&self.line)),
            ("limits", pairs(&self.limits)),
            ("properties", pairs(&self.properties)),
            ("cold", Json::Bool(self.is_cold)),
            ("pipelines", Json::Whole(self.n_compiled)),
            ("seconds", self.seconds.map_or(Json::Null, Json::Number)),
            ("error", self.error.as_ref().map_or(Json::Null, |error| Json::text(without_paths(error)))),
            ("kernels", Json::list(self.kernels(), Json::Text)),
            ("forms", Json::list(&self.forms, FormReport::json)),
            ("speeds", self.speeds.as_ref().map_or(Json::Null, speeds_json)),
        ])
    }
}

impl FormReport {
    fn json(&self) -> Json {
        Json::Object(vec![
            ("form", Json::text(self.name)),
            ("passed", Json::Bool(self.verdict.failures.is_empty())),
            ("cases", Json::Whole(self.verdict.n_cases as u64)),
            ("elements", Json::Whole(self.verdict.n_elems as u64)),
            ("worst_ulps", Json::Number(self.verdict.worst_ulps)),
            ("seconds", Json::Number(self.seconds)),
            ("kernels", Json::list(&self.verdict.kernels, Json::text)),
            ("failures", Json::list(&self.verdict.failures, |failure| Json::Text(without_paths(failure)))),
        ])
    }
}

fn speeds_json(speeds: &Speeds) -> Json {
    let line = |line: &Speed| {
        Json::Object(vec![
            ("work", Json::text(line.name)),
            ("seconds", Json::Number(line.seconds)),
            ("flops_per_second", Json::Number(line.flops / line.seconds)),
            ("bytes_per_second", Json::Number(line.bytes / line.seconds)),
            ("share_of_peak", Json::Number(speeds.share(line))),
            ("variant", line.variant.as_ref().map_or(Json::Null, Json::text)),
        ])
    };
    Json::Object(vec![
        ("latency_seconds", Json::Number(speeds.latency)),
        ("full_workgroups", speeds.full_groups.map_or(Json::Null, |n| Json::Whole(n as u64))),
        ("peak_bytes_per_second", Json::Number(speeds.peak_bytes)),
        ("peak_flops_per_second", Json::Number(speeds.peak_flops)),
        ("work", Json::list(&speeds.lines, line)),
    ])
}

/// What the API says that the device can do, as far as kernels depend on it.
fn limits(device: &Device) -> Vec<(&'static str, String)> {
    let info = device.info();
    if info.kind == DeviceKind::Cpu {
        return Vec::new();
    }
    let Ok((gpu, _)) = lazuli::gpu::handles(device) else { return Vec::new() };
    let (limits, about, features) = (gpu.limits(), gpu.adapter_info(), gpu.features());
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let subgroups = match features.contains(wgpu::Features::SUBGROUP) {
        true => format!("{} to {} invocations", about.subgroup_min_size, about.subgroup_max_size),
        false => "none".to_string(),
    };
    let has = |feature| if features.contains(feature) { "yes" } else { "no" }.to_string();
    let n_across = limits.max_compute_workgroups_per_dimension;
    vec![
        ("vendor and device", format!("{:04x}:{:04x}", about.vendor, about.device)),
        ("largest buffer", mib(limits.max_buffer_size)),
        ("largest binding", mib(limits.max_storage_buffer_binding_size)),
        ("storage bindings", limits.max_storage_buffers_per_shader_stage.to_string()),
        ("workgroup", format!("{} invocations", limits.max_compute_invocations_per_workgroup)),
        ("workgroup memory", format!("{} KiB", limits.max_compute_workgroup_storage_size >> 10)),
        ("workgroups along an axis", n_across.to_string()),
        ("subgroups", subgroups),
        ("timestamps", has(wgpu::Features::TIMESTAMP_QUERY)),
        ("compiled kernels are kept", has(wgpu::Features::PIPELINE_CACHE)),
    ]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
        writeln!(f, "Lazuli {version}, {os} {arch}: {}", self.summary())?;
        self.devices.iter().try_for_each(|device| write!(f, "\n{device}"))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}  {}", self.opened_by, self.line)?;
        for (title, pairs) in [("The driver says", &self.limits), ("Lazuli uses", &self.properties)] {
            if !pairs.is_empty() {
                writeln!(f, "\n   {title}")?;
            }
            for (name, value) in pairs {
                writeln!(f, "     {name:<26} {value}")?;
            }
        }
        let n_passed = self.forms.iter().filter(|form| form.verdict.failures.is_empty()).count();
        writeln!(f, "\n   Forms of kernels: {n_passed} of {} passed", self.forms.len())?;
        writeln!(f, "     {:<36} {:>5} {:>9} {:>10} {:>8}", "form", "cases", "elements", "worst ulps", "seconds")?;
        for form in &self.forms {
            let verdict = &form.verdict;
            // Of random programs elements and errors are not counted.
            let (elements, ulps) = match verdict.n_elems {
                0 => (String::new(), String::new()),
                n => (n.to_string(), format!("{:.2}", verdict.worst_ulps)),
            };
            let end = if verdict.failures.is_empty() { "passed" } else { "FAILED" };
            writeln!(
                f,
                "     {:<36} {:>5} {elements:>9} {ulps:>10} {:>8.2}  {end}",
                form.name, verdict.n_cases, form.seconds
            )?;
        }
        let kernels = self.kernels();
        if !kernels.is_empty() {
            writeln!(f, "\n   Kernels that ran: {}", kernels.join(", "))?;
        }
        for form in self.forms.iter().filter(|form| !form.verdict.failures.is_empty()) {
            writeln!(f, "\n   FAILED: {}", form.name)?;
            // The first says most; all are in the JSON.
            for line in without_paths(&form.verdict.failures[0]).lines().take(40) {
                writeln!(f, "     {}", line.chars().take(400).collect::<String>())?;
            }
            if form.verdict.failures.len() > 1 {
                writeln!(f, "     and {} more like it", form.verdict.failures.len() - 1)?;
            }
        }
        if let Some(speeds) = &self.speeds {
            write_speeds(speeds, f)?;
        }
        if let Some(error) = &self.error {
            writeln!(f, "\n   FAILED: {}", without_paths(error))?;
        }
        match self.seconds {
            Some(seconds) => {
                let cold = if self.is_cold { ", for the first time on this driver" } else { "" };
                writeln!(f, "\n   {seconds:.1} s, {} kernels compiled{cold}", self.n_compiled)
            }
            None => writeln!(f, "\n   interrupted"),
        }
    }
}

fn write_speeds(speeds: &Speeds, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Speeds { peak_bytes, peak_flops, latency, .. } = speeds;
    writeln!(
        f,
        "\n   Speed: the fastest kernels reach {:.1} GB/s and {:.1} GFLOP/s; the smallest takes {:.3} ms",
        peak_bytes / 1e9,
        peak_flops / 1e9,
        latency * 1e3
    )?;
    if let Some(n_groups) = speeds.full_groups {
        writeln!(
            f,
            "     {n_groups} workgroups of 64 invocations keep it busy; products that start fewer are cut further"
        )?;
    }
    writeln!(f, "     {:<44} {:>9} {:>9} {:>8} {:>8}", "work", "ms", "GFLOP/s", "GB/s", "of peak")?;
    for line in &speeds.lines {
        let gflops = if line.flops > 0.0 { format!("{:.1}", line.flops / line.seconds / 1e9) } else { String::new() };
        writeln!(
            f,
            "     {:<44} {:>9.3} {gflops:>9} {:>8.1} {:>7.0}%  {}",
            line.name,
            line.seconds * 1e3,
            line.bytes / line.seconds / 1e9,
            100.0 * speeds.share(line),
            line.variant.as_deref().unwrap_or_default()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_told_in_time_rates_and_shares() {
        let line = |name, flops: f64, bytes: f64, variant: Option<&str>| Speed {
            name,
            seconds: 2e-3,
            flops,
            bytes,
            variant: variant.map(String::from),
        };
        let lines = vec![line("product", 1e9, 1e6, Some("8x4")), line("softmax", 0.0, 4e6, None)];
        let speeds = Speeds { peak_bytes: 1e10, peak_flops: 2e12, latency: 1.5e-5, full_groups: Some(96), lines };
        let mut report = DeviceReport::new("0", &Device::cpu());
        report.speeds = Some(speeds);
        let text = report.to_string();
        for expect in [
            "   Speed: the fastest kernels reach 10.0 GB/s and 2000.0 GFLOP/s; the smallest takes 0.015 ms\n",
            "     96 workgroups of 64 invocations keep it busy; products that start fewer are cut further\n",
            "     work                                                ms   GFLOP/s     GB/s  of peak\n",
            // Shares of the measured peaks: in 2 ms the product makes a quarter of the peak's FLOPs, the softmax moves a fifth of the
            // peak's bytes.
            "     product                                          2.000     500.0      0.5      25%  8x4\n",
            "     softmax                                          2.000                2.0      20%  \n",
        ] {
            assert!(text.contains(expect), "{expect}\n{text}");
        }
        let json = report.json().to_string();
        for expect in [
            r#""peak_bytes_per_second":10000000000,"peak_flops_per_second":2000000000000,"#,
            r#"{"work":"product","seconds":0.002,"flops_per_second":500000000000,"#,
            r#""share_of_peak":0.25,"variant":"8x4"}"#,
            r#""share_of_peak":0.2,"variant":null}"#,
        ] {
            assert!(json.contains(expect), "{expect}\n{json}");
        }
    }

    #[test]
    fn a_first_run_on_a_driver_says_so() {
        let mut report = DeviceReport::new("0", &Device::cpu());
        (report.seconds, report.n_compiled) = (Some(1.5), 7);
        assert!(report.to_string().ends_with("\n   1.5 s, 7 kernels compiled\n"), "{report}");
        report.is_cold = true;
        assert!(report.to_string().ends_with("7 kernels compiled, for the first time on this driver\n"), "{report}");
    }
}
