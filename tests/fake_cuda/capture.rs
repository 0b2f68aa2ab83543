//! Captures: streams that fork from the stream on which a capture began, and join it again.

use std::collections::BTreeSet;

use crate::driver::Driver;
use crate::ffi::*;
use crate::module::Node;

/// A position of a stream in a capture, or of an event that was recorded in one.
#[derive(Clone)]
pub struct Place {
    /// The stream that the capture began on.
    pub origin: Handle,
    /// The nodes that the next captured node depends on.
    behind: BTreeSet<usize>,
    /// Whether some of these nodes are another stream's and were added since this stream's last node.
    waited: bool,
}

impl Driver {
    /// Begins a capture.
    pub fn begin_capture(&mut self, origin: Handle) -> Result<(), Code> {
        let place = Place { origin, behind: BTreeSet::new(), waited: false };
        let found = self.streams.get(origin).map(|stream| {
            stream.captured = Some(Vec::new());
            stream.place.replace(place).is_some()
        });
        if self.valid(found)? {
            return self.refuse("a capture on a stream that captures".into(), INVALID_VALUE);
        }
        self.capturing.push((std::thread::current().id(), origin));
        Ok(())
    }

    /// The stream's position in a capture; `None` if it does not capture.
    pub fn place(&mut self, stream: Handle) -> Result<Option<Place>, Code> {
        let found = self.streams.get(stream).map(|stream| stream.place.clone());
        self.valid(found)
    }

    /// Captures a node. One that is `early` may begin before its predecessor has ended, which is refused behind a wait
    /// for another stream.
    pub fn capture(&mut self, stream: Handle, mut node: Node, early: bool) -> Result<(), Code> {
        let mut place = self.place(stream)?.expect("the caller has looked");
        if early && place.waited {
            return self.refuse("a launch that may begin before what its stream waits for".into(), INVALID_VALUE);
        }
        let nodes = self.streams.ever(place.origin).captured.as_mut().expect("an origin has nodes");
        if let Node::Launch(launch) = &mut node {
            (launch.behind, launch.joins) = (place.behind.clone(), place.waited);
        }
        place.behind.insert(nodes.len());
        place.waited = false;
        nodes.push(node);
        self.streams.ever(stream).place = Some(place);
        Ok(())
    }

    /// Makes a stream wait for an event that was recorded in a capture: the stream becomes a part of that capture.
    pub fn join_capture(&mut self, stream: Handle, event: Place) -> Result<(), Code> {
        let mut place = match self.place(stream)? {
            Some(place) if place.origin != event.origin => {
                return self.refuse("a wait for another capture's event".into(), CAPTURE_UNSUPPORTED);
            }
            Some(place) => place,
            None => Place { behind: BTreeSet::new(), ..event.clone() },
        };
        place.waited |= !event.behind.is_subset(&place.behind);
        place.behind.extend(&event.behind);
        self.streams.ever(stream).place = Some(place);
        Ok(())
    }

    /// Ends the capture that this thread began on a stream; returns its nodes.
    pub fn end_capture(&mut self, origin: Handle) -> Result<Vec<Node>, Code> {
        let me = std::thread::current().id();
        let Some(index) = self.capturing.iter().position(|capture| *capture == (me, origin)) else {
            return self.refuse("the end of a capture that this thread did not begin".into(), INVALID_VALUE);
        };
        self.capturing.swap_remove(index);
        let place = self.place(origin)?.expect("it captures");
        let nodes = self.streams.ever(origin).captured.take().expect("it captures");
        let is_part = |place: &mut Option<Place>| place.take_if(|place| place.origin == origin);
        self.streams.each_live(|stream| drop(is_part(&mut stream.place)));
        self.events.each_live(|event| drop(is_part(&mut event.place)));
        match place.behind.len() == nodes.len() {
            true => Ok(nodes),
            // A branch need not join where a failed call has cut it short.
            false if self.has_failed => Err(CAPTURE_UNJOINED),
            false => self.refuse("a capture with a branch that does not join it".into(), CAPTURE_UNJOINED),
        }
    }
}
