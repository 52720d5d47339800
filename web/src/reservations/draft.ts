/** What somebody fills in to reserve or to change a reservation, what is wrong with it, and what the hub is then asked. Pure. */
import type { AnyGpus, Reservation, ReservationChange, NewReservation, Slot } from '../api/reservations'
import { fieldOf, lengthOf, lengthText, momentOf } from './times'

export interface Draft {
  /** Named GPUs, or any that fit. */
  mode: 'these' | 'any'
  /** UUIDs. */
  gpus: string[]
  request: RequestDraft
  isNow: boolean
  /** As a field has it; counts unless it begins now. */
  from: string
  /** Which of the two was said last: the other one follows from it. */
  by: 'length' | 'until'
  length: string
  until: string
  note: string
  /** Whose it is; admins choose, and who reserves without an account gives a name. */
  user: string
}

/** Any so many that fit, as typed. */
export interface RequestDraft {
  count: string
  memory: string
  model: string
  sameHost: boolean
  mig: boolean
}

export type Field = 'gpus' | 'count' | 'memory' | 'from' | 'length' | 'until' | 'user'
export type Mistakes = Partial<Record<Field, string>>

const USUAL_LENGTH = '4h'
const MOST_GPUS = 1024
/** What the hub takes for now, seconds. */
const LATE = 60
const MEMORY = /^\d{1,18}(?:\.\d{1,9})? ?[kmgt]i?b?$/i
export const NO_NAME = 'Enter your name. Others see it next to the reservation.'
const SKIPPED = 'This time does not exist. Enter a valid date and time.'

/** Times that people mean often. */
export interface Preset {
  label: string
  start: number
  end: number
}

/** In the viewer's zone. */
export function presetsOf(now: number): Preset[] {
  const today = new Date(now * 1000)
  const at = (days: number, hour: number): number => new Date(today.getFullYear(), today.getMonth(), today.getDate() + days, hour).getTime() / 1000
  return [
    { label: 'Tonight (until 8:00)', start: Math.max(now, at(0, 18)), end: at(1, 8) },
    { label: 'Tomorrow', start: at(1, 0), end: at(2, 0) },
    { label: 'Tomorrow 9–18', start: at(1, 9), end: at(1, 18) },
  ]
}

export function withPreset(draft: Draft, { start, end }: Preset, now: number): Draft {
  return { ...draft, isNow: start <= now, from: fieldOf(start), by: 'until', until: fieldOf(end) }
}

export const emptyRequest = (): RequestDraft => ({ count: '1', memory: '', model: '', sameHost: false, mig: false })

/** `start` of null, or one that is past, means now. */
export function newDraft(gpus: readonly string[], start: number | null, end: number | null, now: number, user = ''): Draft {
  const isNow = start === null || start <= now + LATE
  const from = isNow ? now : start
  const length = end === null || end - from < LATE ? USUAL_LENGTH : lengthText(end - from)
  const by = end !== null && end - from >= LATE ? 'until' : 'length'
  return { mode: gpus.length === 0 ? 'any' : 'these', gpus: [...gpus], request: emptyRequest(), isNow, from: fieldOf(from), by, length, until: by === 'until' ? fieldOf(end as number) : '', note: '', user }
}

export function draftOf(reservation: Reservation): Draft {
  const { start, end } = reservation
  return { mode: 'these', gpus: reservation.gpus.map(({ uuid }) => uuid), request: emptyRequest(), isNow: false, from: fieldOf(start), by: 'until', length: lengthText(end - start), until: fieldOf(end), note: reservation.note, user: reservation.user }
}

/** When it begins, Unix seconds; null where what is typed is no time. */
export function startOf({ isNow, from }: Draft, now: number): number | null {
  return isNow ? now : momentOf(from)
}

/** What the field beside the one that was filled in shows. */
export function untilShown(draft: Draft, now: number): string {
  if (draft.by === 'until') return draft.until
  const [start, length] = [startOf(draft, now), lengthOf(draft.length)]
  return start === null || length === null ? '' : fieldOf(start + length)
}

export function lengthShown(draft: Draft, now: number): string {
  if (draft.by === 'length') return draft.length
  const [start, end] = [startOf(draft, now), momentOf(draft.until)]
  return start === null || end === null || end <= start ? '' : lengthText(end - start)
}

/** What can be seen without asking the hub, which knows everything else better. `needsName`: there is no account to reserve by. */
export function mistakesOf(draft: Draft, now: number, needsName = false): Mistakes {
  const mistakes: Mistakes = draft.mode === 'any' ? requestMistakes(draft.request) : draft.gpus.length === 0 ? { gpus: 'Select at least one GPU.' } : {}
  if (needsName && draft.user.trim() === '') mistakes.user = NO_NAME
  const start = startOf(draft, now)
  if (start === null) mistakes.from = SKIPPED
  if (draft.by === 'length') {
    if (lengthOf(draft.length) === null) mistakes.length = 'Enter a duration such as 4h, 90m or 1d 6h.'
    return mistakes
  }
  const end = momentOf(draft.until)
  if (end === null) mistakes.until = SKIPPED
  else if (start !== null && end <= start) mistakes.until = 'The end must be after the start.'
  else if (end <= now) mistakes.until = 'The end is in the past.'
  return mistakes
}

export function requestMistakes({ count, memory }: RequestDraft): Mistakes {
  const mistakes: Mistakes = {}
  if (!/^\d{1,4}$/.test(count.trim()) || Number(count) < 1 || Number(count) > MOST_GPUS) mistakes.count = `Enter a number from 1 to ${MOST_GPUS}.`
  if (memory.trim() !== '' && !MEMORY.test(memory.trim())) mistakes.memory = 'Enter an amount with a unit, such as 40G.'
  return mistakes
}

export function requestOf({ count, memory, model, sameHost, mig }: RequestDraft): AnyGpus {
  return {
    gpus: Number(count),
    ...(memory.trim() === '' ? {} : { memory: memory.trim() }),
    ...(model.trim() === '' ? {} : { model: model.trim() }),
    ...(sameHost ? { same_host: true } : {}),
    ...(mig ? { mig: true } : {}),
  }
}

/** What is sent of a draft without mistakes. `me` is whose it is unless somebody else is named. */
export function reservationBody(draft: Draft, me: string): NewReservation {
  const user = draft.user.trim()
  return {
    ...(draft.mode === 'any' ? { any: requestOf(draft.request) } : { gpus: draft.gpus }),
    ...(draft.isNow ? {} : { start: momentOf(draft.from) }),
    ...endBody(draft),
    note: draft.note,
    ...(user === '' || user === me ? {} : { user }),
  }
}

function endBody(draft: Draft): { for: number | null } | { end: number | null } {
  return draft.by === 'length' ? { for: lengthOf(draft.length) } : { end: momentOf(draft.until) }
}

/** What a preview depends on, as the text of its question; null where there is nothing to ask yet. */
export function previewQuestion(draft: Draft, me: string, now: number): string | null {
  if (Object.keys(mistakesOf(draft, now)).length > 0) return null
  return JSON.stringify({ ...reservationBody(draft, me), note: '' })
}

/** The same with the GPUs of a preview: what was shown is what is reserved. */
export function withPreview(body: NewReservation, gpus: readonly { uuid: string }[]): NewReservation {
  const { any: _, ...others } = body
  return { ...others, gpus: gpus.map(({ uuid }) => uuid) }
}

/** What makes a reservation of `after` what it was `before`. */
export function undoBody(before: Reservation, after: Reservation): ReservationChange {
  const uuids = before.gpus.map(({ uuid }) => uuid)
  return {
    version: after.version,
    ...(before.start === after.start ? {} : { start: before.start }),
    ...(before.start === after.start && before.end === after.end ? {} : { end: before.end }),
    ...(isSameSet(uuids, after.gpus.map(({ uuid }) => uuid)) ? {} : { gpus: uuids }),
    ...(before.note === after.note ? {} : { note: before.note }),
    ...(before.user === after.user ? {} : { user: before.user }),
  }
}

/** What reserves once more what was released; one that had begun begins now. */
export function againBody({ gpus, start, end, note, user }: Reservation, me: string, now: number): NewReservation {
  return { gpus: gpus.map(({ uuid }) => uuid), ...(start <= now ? {} : { start }), end, note, ...(user === me ? {} : { user }) }
}

/** Only what was changed: a field shows whole minutes, and what nobody touched stays to the second. Null: nothing. */
export function changeBody(draft: Draft, reservation: Reservation): ReservationChange | null {
  const before = draftOf(reservation)
  const change: ReservationChange = {}
  if (!isSameSet(draft.gpus, before.gpus)) change.gpus = draft.gpus
  if (draft.from !== before.from) change.start = momentOf(draft.from)
  const isEndSame = draft.by === 'until' ? draft.until === before.until : lengthOf(draft.length) === lengthOf(before.length)
  if (!isEndSame) Object.assign(change, endBody(draft))
  else if (draft.by === 'until' && change.start !== undefined) change.end = reservation.end
  if (draft.note !== before.note) change.note = draft.note
  if (draft.user.trim() !== '' && draft.user.trim() !== before.user) change.user = draft.user.trim()
  return Object.keys(change).length === 0 ? null : { ...change, version: reservation.version }
}

/** A slot that has come, and not the moment at which it was found, begins when it is reserved, and is as long as it was. */
export function slotTime({ start, end }: Slot, now: number): { start?: number; for: number } {
  return start <= now ? { for: end - start } : { start, for: end - start }
}

/** The same reservation at a time and on GPUs that are free; to the second, which no field could hold. */
export function slotBody(draft: Draft, slot: Slot, me: string, now: number): NewReservation {
  const user = draft.user.trim()
  return { gpus: slot.gpus.map(({ uuid }) => uuid), ...slotTime(slot, now), note: draft.note, ...(user === '' || user === me ? {} : { user }) }
}

/** What was meant to be changed, but at that time and on those GPUs. */
export function slotChange(change: ReservationChange, reservation: Reservation, slot: Slot, now: number): ReservationChange {
  const { end: _, gpus: __, ...others } = change
  const uuids = slot.gpus.map(({ uuid }) => uuid)
  const isSame = isSameSet(uuids, reservation.gpus.map(({ uuid }) => uuid))
  // Without a start it would stay where it is.
  return { ...others, ...slotTime(slot, now), start: Math.max(slot.start, now), ...(isSame ? {} : { gpus: uuids }) }
}

function isSameSet(some: readonly string[], others: readonly string[]): boolean {
  return some.length === others.length && new Set([...some, ...others]).size === some.length
}
