//! What environment variables set.

use emulator::LaunchOptions;
use emulator::driver::DeviceOptions;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What the names of all variables begin with.
pub const PREFIX: &str = "QUIRE_EMULATOR_";

/// The kinds of devices that there are, and their compute capabilities.
const DEVICES: [(&str, (u32, u32)); 6] =
    [("sm_80", (8, 0)), ("sm_86", (8, 6)), ("sm_87", (8, 7)), ("sm_89", (8, 9)), ("sm_90", (9, 0)), ("sm_90a", (9, 0))];
/// The most devices.
const MOST_DEVICES: usize = 16;
/// What can be checked, and what is.
const CHECKS: &str =
    "`all`, `none`, or some of `uninitialised`, `copies`, `races` and `global-races` with commas between";
const DEFAULT_CHECKS: &str = "uninitialised,races,global-races";

/// What environment variables set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The devices.
    pub device: DeviceOptions,
    /// How kernels are executed, and what is checked.
    pub launches: LaunchOptions,
    /// The file that gets what is said of faults, in the place of the standard error stream.
    pub report: Option<PathBuf>,
    /// The exit code of a process with faults; 0 leaves the program its own.
    pub exit_code: u8,
}

/// What the environment has set, from the moment on when the driver is initialised.
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Keeps the settings of the process. A second time nothing changes.
pub fn keep(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// The settings of the process, once the driver has been initialised.
pub fn kept() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// A variable with a wrong value, or one that there is not.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongSetting {
    name: String,
    value: String,
    /// What it may be.
    wanted: String,
}

impl fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} is not possible: {}", self.name, self.value, self.wanted)
    }
}

impl Settings {
    /// What variables set, given by their names, which begin with [`PREFIX`], and their values. An empty one sets nothing.
    pub fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Self, WrongSetting> {
        let mut settings = Self::default();
        settings.launches.poison = true;
        settings.check(DEFAULT_CHECKS);
        for (name, value) in variables.filter(|(_, value)| !value.is_empty()) {
            let set = settings.set(name.strip_prefix(PREFIX).unwrap_or(&name), &value);
            set.map_err(|wanted| WrongSetting { name, value, wanted })?;
        }
        Ok(settings)
    }

    /// Sets what a variable is for. If the value is wrong, gives what it should be.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "DEVICE" => {
                let known = DEVICES.iter().find(|(device, _)| *device == value);
                let names = DEVICES.map(|(device, _)| device).join(", ");
                self.device.capability = known.ok_or_else(|| format!("the devices are {names}"))?.1;
            }
            "DEVICES" => {
                let count = value.parse().ok().filter(|count| (1..=MOST_DEVICES).contains(count));
                self.device.devices = count.ok_or_else(|| format!("there are 1 to {MOST_DEVICES} devices"))?;
            }
            "CHECKS" => self.check(value).ok_or_else(|| format!("the checks are {CHECKS}"))?,
            "SEED" => {
                let wanted = || "a seed is a number; 0 is the order without chance".to_owned();
                self.launches.seed = value.parse().map_err(|_| wanted())?;
            }
            "INSTRUCTION_LIMIT" => {
                let limit = value.parse().ok().filter(|&limit| limit > 0);
                self.launches.instruction_limit = limit.ok_or("the limit is a number of warp instructions")?;
            }
            "REPORT" => self.report = Some(value.into()),
            "EXIT_CODE" => {
                self.exit_code = value.parse().map_err(|_| "an exit code is a number from 0 to 255".to_owned())?;
            }
            _ => return Err("there is no such variable; the README of quire-libcuda has a list".to_owned()),
        }
        Ok(())
    }

    /// Sets what is checked.
    fn check(&mut self, value: &str) -> Option<()> {
        let launches = &mut self.launches;
        let all = value == "all";
        (launches.check_initialised, launches.check_copies) = (all, all);
        (launches.check_races, launches.check_global_races) = (all, all);
        if all || value == "none" {
            return Some(());
        }
        for check in value.split(',') {
            match check {
                "uninitialised" => launches.check_initialised = true,
                "copies" => (launches.check_initialised, launches.check_copies) = (true, true),
                "races" => launches.check_races = true,
                "global-races" => launches.check_global_races = true,
                _ => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let named = |(name, value): &(&str, &str)| (format!("{PREFIX}{name}"), (*value).to_owned());
        Settings::read(variables.iter().map(named)).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn variables_set_what_they_are_for() {
        let settings =
            read(&[("DEVICE", "sm_80"), ("DEVICES", "3"), ("SEED", "7"), ("EXIT_CODE", "9"), ("REPORT", "x")]).unwrap();
        assert_eq!((settings.device.capability, settings.device.devices), ((8, 0), 3));
        assert_eq!((settings.launches.seed, settings.exit_code), (7, 9));
        assert_eq!(settings.report, Some("x".into()));
        let limit = |variables| read(variables).unwrap().launches.instruction_limit;
        assert_eq!(limit(&[("INSTRUCTION_LIMIT", "17179869184")]), 1 << 34);
        assert_eq!(limit(&[]), LaunchOptions::default().instruction_limit);
        assert_eq!(read(&[]).unwrap(), read(&[("DEVICE", ""), ("CHECKS", DEFAULT_CHECKS)]).unwrap());
        assert_eq!(read(&[("DEVICE", "sm_90a")]).unwrap().device.capability, (9, 0));
    }

    #[test]
    fn checks_are_those_that_are_named() {
        let checks = |value| {
            let launches = read(&[("CHECKS", value)]).unwrap().launches;
            [launches.check_initialised, launches.check_copies, launches.check_races, launches.check_global_races]
        };
        assert_eq!(checks("none"), [false; 4]);
        assert_eq!(checks("all"), [true; 4]);
        assert_eq!(checks("global-races,uninitialised"), [true, false, false, true]);
        assert_eq!(checks("copies"), [true, true, false, false]);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        assert_eq!(
            read(&[("DEVICE", "sm_70")]).unwrap_err(),
            "QUIRE_EMULATOR_DEVICE=sm_70 is not possible: the devices are sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a"
        );
        for (name, value) in [
            ("DEVICES", "0"),
            ("DEVICES", "17"),
            ("SEED", "x"),
            ("EXIT_CODE", "256"),
            ("INSTRUCTION_LIMIT", "0"),
            ("INSTRUCTION_LIMIT", "many"),
            ("CHECKS", "race"),
            ("SEEDS", "1"),
        ] {
            assert!(
                read(&[(name, value)]).unwrap_err().starts_with(&format!("{PREFIX}{name}={value} is not possible"))
            );
        }
    }
}
