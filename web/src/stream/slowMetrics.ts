/**
 * The metrics that no delta brings (`"live": false` in the catalog): whatever shows them reads the host again and again.
 */
import { request, type Answer } from '../api/request'
import type { Host } from '../api/types'
import { whileVisible } from './visibility'
import type { HostEntry } from './fleetModel'

export const READ_SECONDS = 5

/** By id: two hosts may share a name. */
const readHost = (id: string): Promise<Answer<Host>> => request('get', '/api/v1/hosts/{host}', { path: { host: id } }) as Promise<Answer<Host>>

/**
 * Reads the host at once, unless it was just read, and then every few seconds while the page is visible. `now` is the
 * hub's clock. Returns how to stop.
 */
export function keepRead(entry: HostEntry, now: () => number, read: (id: string) => Promise<Answer<Host>> = readHost): () => void {
  let isAsking = false
  let isOver = false
  const renew = async (): Promise<void> => {
    const at = now()
    // Timers are never exact: half a second more or less is no reason to wait for another turn.
    if (isAsking || at - entry.readAt < READ_SECONDS - 0.5) return
    isAsking = true
    const answer = await read(entry.id)
    isAsking = false
    if (!isOver && 'done' in answer) entry.refresh(answer.done, at)
  }
  void renew()
  const stop = whileVisible(READ_SECONDS, () => void renew())
  return () => {
    isOver = true
    stop()
  }
}
