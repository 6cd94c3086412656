//! The device: memory and launches.

use crate::arg::Arg;
use crate::exec::{
    self, GlobalReleases, LaunchArguments, LaunchConfig, LaunchKernel, LaunchPlace, RunningLaunch, Shared,
};
use crate::fault::{Fault, FaultKind};
use crate::launch_options::LaunchOptions;
use crate::memory::{DeviceAddress, Memory};
use crate::module::PtxModule;
use crate::ptx::ast::Initial;
use crate::report::CostReport;
use std::collections::HashMap;

/// An invalid use of device memory by the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(String);

/// A device with memory of its own, which runs one kernel after the other.
#[derive(Debug)]
pub struct EmulatedDevice {
    pub(crate) memory: Memory,
    /// Views that strong writes to global memory released, in launches that have not ended.
    pub(crate) releases: GlobalReleases,
    /// Addresses of variables, by module id and variable index. Only modules that were used have them.
    variables: HashMap<(u64, usize), DeviceAddress>,
}

impl EmulatedDevice {
    /// Creates a device with empty memory.
    pub fn new() -> Self {
        Self::at(0)
    }

    /// Creates a device whose addresses are in one address area. Devices in different areas share no addresses.
    pub(crate) fn at(area: u64) -> Self {
        Self { memory: Memory::new(area), releases: GlobalReleases::default(), variables: HashMap::new() }
    }

    /// Takes over another device and its memory. Kernels can reach that memory where peer access allows.
    ///
    /// The devices in `other` are numbered after the devices here.
    pub(crate) fn absorb(&mut self, other: EmulatedDevice) {
        self.memory.absorb(other.memory);
        self.variables.extend(other.variables);
    }

    /// Allocates a buffer with a generated name.
    pub fn alloc(&mut self, bytes: usize) -> DeviceAddress {
        let name = format!("buffer {}", self.memory.buffers.len());
        self.memory.allocate(&name, bytes)
    }

    /// Allocates a named buffer. Faults report the name.
    pub fn alloc_named(&mut self, name: &str, bytes: usize) -> DeviceAddress {
        self.memory.allocate(name, bytes)
    }

    /// Allocates a named buffer and fills it.
    pub fn alloc_from(&mut self, name: &str, bytes: &[u8]) -> DeviceAddress {
        let pointer = self.memory.allocate(name, bytes.len());
        if let Some(buffer) = self.memory.buffers.last_mut() {
            buffer.data.copy_from_slice(bytes);
            buffer.written.insert_range(0, bytes.len());
        }
        pointer
    }

    fn locate(&self, at: DeviceAddress, bytes: usize) -> Result<(usize, usize), MemoryError> {
        self.memory.locate(at, bytes).map_err(|violation| MemoryError(violation.message))
    }

    /// Frees a buffer. Its addresses are never reused.
    pub fn free(&mut self, at: DeviceAddress) -> Result<(), MemoryError> {
        let (index, offset) = self.locate(at, 0)?;
        if offset != 0 {
            return Err(MemoryError(format!("{at:#x} is not the start of a buffer")));
        }
        self.memory.buffers[index].free();
        Ok(())
    }

    /// Copies bytes to the device.
    pub fn write(&mut self, at: DeviceAddress, bytes: &[u8]) -> Result<(), MemoryError> {
        let (index, offset) = self.locate(at, bytes.len())?;
        let buffer = &mut self.memory.buffers[index];
        buffer.data[offset..offset + bytes.len()].copy_from_slice(bytes);
        buffer.written.insert_range(offset, bytes.len());
        self.memory.bring(index, offset, bytes.len());
        Ok(())
    }

    /// Refreshes bytes of a buffer that mirrors host memory, before they are read.
    pub(crate) fn fetch(&mut self, at: DeviceAddress, bytes: usize) {
        if let Ok((index, offset)) = self.locate(at, bytes) {
            self.memory.fetch(index, offset, bytes);
        }
    }

    /// Copies bytes from the device. Returns an error if any of them was never written.
    pub fn read(&self, at: DeviceAddress, bytes: usize) -> Result<Vec<u8>, MemoryError> {
        let (index, offset) = self.locate(at, bytes)?;
        let buffer = &self.memory.buffers[index];
        if !buffer.written.contains_range(offset, bytes) {
            let first = (offset..offset + bytes).find(|&at| !buffer.written.contains_range(at, 1)).unwrap_or(offset);
            return Err(MemoryError(format!("offset {first} of `{}` was never written", buffer.name)));
        }
        Ok(buffer.data[offset..offset + bytes].to_vec())
    }

    /// Copies bytes from the device, whether or not they were written.
    pub(crate) fn read_any(&self, at: DeviceAddress, bytes: usize) -> Result<Vec<u8>, MemoryError> {
        let (index, offset) = self.locate(at, bytes)?;
        Ok(self.memory.buffers[index].data[offset..offset + bytes].to_vec())
    }

    /// Checks that bytes are within one accessible buffer.
    pub(crate) fn check(&self, at: DeviceAddress, bytes: usize) -> Result<(), MemoryError> {
        self.locate(at, bytes).map(|_| ())
    }

    /// Copies bytes within the device. Unwritten bytes stay unwritten in the copy.
    pub(crate) fn copy(&mut self, to: DeviceAddress, from: DeviceAddress, bytes: usize) -> Result<(), MemoryError> {
        let source = self.locate(from, bytes)?;
        let target = self.locate(to, bytes)?;
        self.copy_located(target, source, bytes);
        Ok(())
    }

    /// Copies bytes from one device's memory to another's, whether or not they are peers.
    ///
    /// Each side is a device number and an address.
    pub(crate) fn copy_between(
        &mut self,
        (there, to): (usize, DeviceAddress),
        (here, from): (usize, DeviceAddress),
        bytes: usize,
    ) -> Result<(), MemoryError> {
        self.memory.enter(here);
        let source = self.locate(from, bytes)?;
        self.memory.enter(there);
        let target = self.locate(to, bytes)?;
        self.copy_located(target, source, bytes);
        Ok(())
    }

    /// Copies bytes between two located ranges. Each is a buffer index and an offset.
    fn copy_located(&mut self, (target, offset): (usize, usize), (source, start): (usize, usize), bytes: usize) {
        self.memory.fetch(source, start, bytes);
        let data = self.memory.buffers[source].data[start..start + bytes].to_vec();
        let written = &self.memory.buffers[source].written;
        let unwritten: Vec<usize> = if written.contains_range(start, bytes) {
            Vec::new()
        } else {
            (0..bytes).filter(|at| !written.contains_range(start + at, 1)).collect()
        };
        let buffer = &mut self.memory.buffers[target];
        buffer.data[offset..offset + bytes].copy_from_slice(&data);
        buffer.written.insert_range(offset, bytes);
        unwritten.into_iter().for_each(|at| buffer.written.remove(offset + at));
        self.memory.bring(target, offset, bytes);
    }

    /// Renames the buffer that starts at an address.
    pub(crate) fn rename(&mut self, at: DeviceAddress, name: &str) {
        if let Ok((index, 0)) = self.locate(at, 0) {
            self.memory.buffers[index].name = name.to_string();
        }
    }

    /// Returns the address of a module's variable. The first use of a module places all its variables in memory.
    pub fn variable(&mut self, module: &PtxModule, name: &str) -> Option<DeviceAddress> {
        let index = module.variables.iter().position(|variable| variable.name == name)?;
        self.place_variables(module);
        self.variables.get(&(module.id, index)).copied()
    }

    fn place_variables(&mut self, module: &PtxModule) {
        if module.variables.is_empty() || self.variables.contains_key(&(module.id, 0)) {
            return;
        }
        for (index, variable) in module.variables.iter().enumerate() {
            let address = self.memory.allocate(&variable.name, variable.size);
            self.variables.insert((module.id, index), address);
        }
        for (index, variable) in module.variables.iter().enumerate() {
            let mut bytes = Vec::with_capacity(variable.size);
            for part in &variable.initial {
                match part {
                    Initial::Bytes(part) => bytes.extend_from_slice(part),
                    Initial::Address { symbol, offset } => {
                        let target = module.variables.iter().position(|other| other.name == *symbol);
                        let address = target.and_then(|target| self.variables.get(&(module.id, target))).copied();
                        let address = address.or_else(|| module.function_address(symbol));
                        bytes.extend_from_slice(&address.unwrap_or(0).wrapping_add_signed(*offset).to_le_bytes());
                    }
                }
            }
            bytes.resize(variable.size, 0); // PTX initialises variables to zero
            let address = self.variables[&(module.id, index)];
            if let Some(buffer) = self.memory.find(address).map(|found| &mut self.memory.buffers[found]) {
                buffer.written.insert_range(0, bytes.len());
                buffer.data = bytes;
            }
        }
    }

    /// Runs a kernel to its end.
    pub fn launch(
        &mut self,
        module: &PtxModule,
        entry: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: usize,
        args: &[Arg],
    ) -> Result<CostReport, Box<Fault>> {
        self.launch_with(&LaunchOptions::default(), module, entry, grid, block, dynamic_shared, args)
    }

    /// Runs a kernel to its end with the given options.
    #[allow(clippy::too_many_arguments, reason = "the arguments of a launch")]
    pub fn launch_with(
        &mut self,
        options: &LaunchOptions,
        module: &PtxModule,
        entry: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: usize,
        args: &[Arg],
    ) -> Result<CostReport, Box<Fault>> {
        let kernel = kernel(module, entry)?;
        let cluster = exec::cluster_of(kernel.entry, options.cluster);
        let config = LaunchConfig { grid, block, dynamic_shared, cluster };
        let mut launch = self.begin(kernel, config, options, args, LaunchPlace::default())?;
        let mut shared = Shared { memory: &mut self.memory, releases: &mut self.releases };
        let ended = launch.advance(kernel, &mut shared, usize::MAX);
        if let Err(fault) = ended {
            // The launch has ended, so no dependent launch can overlap it.
            self.memory.end_launches();
            return Err(fault);
        }
        Ok(launch.report(kernel, &self.memory))
    }

    /// Begins a launch.
    ///
    /// If no other launch is running (its first block has number 0), clears the access records of earlier launches.
    pub(crate) fn begin(
        &mut self,
        kernel: LaunchKernel<'_>,
        config: LaunchConfig,
        options: &LaunchOptions,
        args: &[Arg],
        place: LaunchPlace,
    ) -> Result<RunningLaunch, Box<Fault>> {
        let parameters = exec::check_launch(kernel.entry, config, options.cluster, args)
            .map_err(|message| Fault::of_call(FaultKind::Launch, kernel.entry.name(), message))?;
        self.memory.enter(place.device);
        self.place_variables(kernel.module);
        if place.first_block == 0 {
            self.memory.begin_launch(options.dependent);
            self.releases.clear();
        }
        let variables =
            (0..kernel.module.variables.len()).map(|index| self.variables[&(kernel.module.id, index)]).collect();
        let arguments = LaunchArguments { config, options: options.clone(), parameters, variables };
        Ok(RunningLaunch::new(kernel, arguments, place))
    }
}

impl Default for EmulatedDevice {
    fn default() -> Self {
        Self::new()
    }
}

/// Looks up a kernel of a module by name and decodes it.
pub(crate) fn kernel<'a>(module: &'a PtxModule, name: &str) -> Result<LaunchKernel<'a>, Box<Fault>> {
    let Some(entry) = module.entry(name) else {
        return Err(Fault::of_call(FaultKind::Launch, name, "there is no such kernel in the module".into()));
    };
    let program = entry.program().map_err(|error| {
        let fault = Fault::of_call(FaultKind::Unsupported, name, error.message.clone());
        Box::new(Fault { ptx_line: error.line, ..*fault })
    })?;
    Ok(LaunchKernel { module, entry, program })
}
