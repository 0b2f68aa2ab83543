//! Submissions in flight: waits, queries and callbacks.

use std::ffi::c_void;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::callback::{self, trefoil_callback};
use super::handles::{insert, look, object, take, trefoil_output, trefoil_ticket};
use super::output::Landed;
use super::pointers::Out;
use super::rows::Rows;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::error::Error;
use crate::ring::{Origin, RowTicket, Ticket};

/// A ticket of a batch, of a row, or of the rows of one call.
pub(super) enum Flying {
    Batch(Ticket),
    Row(RowTicket),
    Rows(Rows),
}
object!(Flying, Ticket);

impl Flying {
    fn wait(self) -> Result<Landed, Error> {
        match self {
            Self::Batch(ticket) => ticket.wait().map(Landed::Batch),
            Self::Row(ticket) => ticket.wait().map(Landed::Row),
            Self::Rows(rows) => rows.wait().map(Landed::Rows),
        }
    }

    fn wait_for(self, limit: Duration) -> Result<Result<Landed, Self>, Error> {
        Ok(match self {
            Self::Batch(ticket) => ticket.wait_for(limit)?.map(Landed::Batch).map_err(Self::Batch),
            Self::Row(ticket) => ticket.wait_for(limit)?.map(Landed::Row).map_err(Self::Row),
            Self::Rows(rows) => rows.wait_for(limit)?.map(Landed::Rows).map_err(Self::Rows),
        })
    }

    /// Whether the answer is there, either a result or a failure.
    fn is_ready(&self) -> bool {
        match self {
            Self::Batch(ticket) => ticket.is_ready().unwrap_or(true),
            Self::Row(ticket) => ticket.is_ready(),
            Self::Rows(rows) => rows.is_ready(),
        }
    }

    /// The ring or batcher that the ticket belongs to.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Batch(ticket) => ticket.origin(),
            Self::Row(ticket) => ticket.origin(),
            Self::Rows(rows) => rows.origin(),
        }
    }

    /// The result, if it is there; otherwise wakes the waker of `context` when it is.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Landed, Error>> {
        match self {
            Self::Batch(ticket) => Pin::new(ticket).poll(context).map_ok(Landed::Batch),
            Self::Row(ticket) => Pin::new(ticket).poll(context).map_ok(Landed::Row),
            Self::Rows(rows) => rows.poll(context).map_ok(Landed::Rows),
        }
    }
}

/// Blocks until the result of this submission is there; it waits for nothing else. The call consumes the ticket's
/// handle, also if the submission failed, unless the status is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or
/// IN_CALLBACK.
///
/// # Safety
/// `output` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_wait(ticket: trefoil_ticket, output: *mut trefoil_output) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(output, "output")? };
        let mut taken = take::<Flying>(ticket)?;
        if !callback::running() {
            to.set(insert(taken.object().wait()?)?);
            return Ok(());
        }
        match taken.object().wait_for(Duration::ZERO)? {
            Ok(landed) => to.set(insert(landed)?),
            Err(flying) => {
                taken.put_back(flying);
                let what = "the result is not there, and a callback does not wait: ask for another callback";
                return Err(Failure::new(trefoil_status::InCallback, what));
            }
        }
        Ok(())
    })
}

/// As trefoil_wait(), for at most `limit_ns`; after that it returns NOT_READY, and the ticket stays valid.
///
/// # Safety
/// `output` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_wait_for(
    ticket: trefoil_ticket,
    limit_ns: u64,
    output: *mut trefoil_output,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(output, "output")? };
        let mut taken = take::<Flying>(ticket)?;
        match taken.object().wait_for(callback::limit(limit_ns))? {
            Ok(landed) => to.set(insert(landed)?),
            Err(flying) => {
                taken.put_back(flying);
                return Err(Failure::not_ready());
            }
        }
        Ok(())
    })
}

/// OK if trefoil_wait() would return at once, with the result or, for example after a fault or a close, with a failure;
/// otherwise NOT_READY. Also OK if a fleet's device has failed and trefoil_wait() will make another one run the rows
/// again, for which it waits. BUSY while another thread waits for the ticket. Never blocks, and the ticket stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_is_ready(ticket: trefoil_ticket) -> trefoil_status {
    guard(|| match look(ticket, Flying::is_ready)? {
        true => Ok(()),
        false => Err(Failure::not_ready()),
    })
}

/// Registers `callback`, which is called once, with `user`, when the result is there or the submission has failed. If
/// the status is OK, the call has consumed the ticket's handle; otherwise the ticket stays valid, and the callback is
/// never called.
///
/// One thread of the library, `trefoil-callback`, runs all callbacks one after the other, never within a call of the
/// program. A callback may run before this call returns. The library holds no lock meanwhile, and its other threads
/// continue. A callback may make any call of this interface, but no call waits there: trefoil_wait() returns
/// IN_CALLBACK if the result is not there, and every limit is 0. For calls after a fault in a fleet see
/// trefoil_fleet_build(). A callback may take a lock, but not one that a thread holds while it waits in this library.
/// Later callbacks wait until it returns, so it should be short. It must not throw or jump out.
///
/// `user` must live until its callback has returned. The callback is always called, also after trefoil_release() of the
/// engine, and with a failure after a fault or a close. When trefoil_engine_close(), trefoil_batcher_close() or
/// trefoil_fleet_close() has returned OK, every callback that was registered before has returned.
///
/// # Safety
/// `callback` may be called with `user`, from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_on_ready(
    ticket: trefoil_ticket,
    callback: trefoil_callback,
    user: *mut c_void,
) -> trefoil_status {
    guard(|| -> Answer {
        let Some(callback) = callback else { return Err(Failure::null("callback")) };
        let mut taken = take::<Flying>(ticket)?;
        let flying = taken.object();
        if let Err((flying, failure)) = callback::register(flying, callback, user) {
            taken.put_back(flying);
            return Err(failure);
        }
        Ok(())
    })
}
