/** What somebody fills in to book or to change a booking, what is wrong with it, and what the hub is then asked. Pure. */
import type { AnyGpus, Booking, BookingChange, NewBooking, Slot } from '../api/reservations'
import { fieldOf, lengthOf, lengthText, momentOf } from './times'

export interface Draft {
  /** Named GPUs, or any that fit. */
  mode: 'these' | 'any'
  /** UUIDs. */
  gpus: string[]
  wish: WishDraft
  isNow: boolean
  /** As a field has it; counts unless it begins now. */
  from: string
  /** Which of the two was said last: the other one follows from it. */
  by: 'length' | 'until'
  length: string
  until: string
  note: string
  /** Whose it is; admins choose, and who books without an account gives a name. */
  user: string
}

/** Any so many that fit, as typed. */
export interface WishDraft {
  count: string
  memory: string
  model: string
  sameHost: boolean
}

export type Field = 'gpus' | 'count' | 'memory' | 'from' | 'length' | 'until' | 'user'
export type Mistakes = Partial<Record<Field, string>>

const USUAL_LENGTH = '4h'
const MOST_GPUS = 1024
/** What the hub takes for now, seconds. */
const LATE = 60
const MEMORY = /^\d{1,18}(?:\.\d{1,9})? ?(?:[kmgt]i?)?b?$/i
export const NO_NAME = 'Enter your name: others see by it who has the GPUs.'
const SKIPPED = 'There is no such time: give a day and a time that the clock shows.'

export const noWish = (): WishDraft => ({ count: '1', memory: '', model: '', sameHost: false })

/** `start` of null, or one that is past, means now. */
export function newDraft(gpus: readonly string[], start: number | null, end: number | null, now: number, user = ''): Draft {
  const isNow = start === null || start <= now + LATE
  const from = isNow ? now : start
  const length = end === null || end - from < LATE ? USUAL_LENGTH : lengthText(end - from)
  const by = end !== null && end - from >= LATE ? 'until' : 'length'
  return { mode: 'these', gpus: [...gpus], wish: noWish(), isNow, from: fieldOf(from), by, length, until: by === 'until' ? fieldOf(end as number) : '', note: '', user }
}

export function draftOf(booking: Booking): Draft {
  const { start, end } = booking
  return { mode: 'these', gpus: booking.gpus.map(({ uuid }) => uuid), wish: noWish(), isNow: false, from: fieldOf(start), by: 'until', length: lengthText(end - start), until: fieldOf(end), note: booking.note, user: booking.user }
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

/** What can be seen without asking the hub, which knows everything else better. `needsName`: there is no account to book by. */
export function mistakesOf(draft: Draft, now: number, needsName = false): Mistakes {
  const mistakes: Mistakes = draft.mode === 'any' ? wishMistakes(draft.wish) : draft.gpus.length === 0 ? { gpus: 'Choose at least one GPU.' } : {}
  if (needsName && draft.user.trim() === '') mistakes.user = NO_NAME
  const start = startOf(draft, now)
  if (start === null) mistakes.from = SKIPPED
  if (draft.by === 'length') {
    if (lengthOf(draft.length) === null) mistakes.length = 'Write a length such as 4h, 90m or 1d 6h.'
    return mistakes
  }
  const end = momentOf(draft.until)
  if (end === null) mistakes.until = SKIPPED
  else if (start !== null && end <= start) mistakes.until = 'It would end before it begins.'
  else if (end <= now) mistakes.until = 'That is in the past.'
  return mistakes
}

export function wishMistakes({ count, memory }: WishDraft): Mistakes {
  const mistakes: Mistakes = {}
  if (!/^\d{1,4}$/.test(count.trim()) || Number(count) < 1 || Number(count) > MOST_GPUS) mistakes.count = `How many: a number from 1 to ${MOST_GPUS}.`
  if (memory.trim() !== '' && !MEMORY.test(memory.trim())) mistakes.memory = 'Write an amount such as 40GiB or 80G.'
  return mistakes
}

export function wishOf({ count, memory, model, sameHost }: WishDraft): AnyGpus {
  return {
    gpus: Number(count),
    ...(memory.trim() === '' ? {} : { memory: memory.trim() }),
    ...(model.trim() === '' ? {} : { model: model.trim() }),
    ...(sameHost ? { same_host: true } : {}),
  }
}

/** What is sent of a draft without mistakes. `me` is whose it is unless somebody else is named. */
export function bookingBody(draft: Draft, me: string): NewBooking {
  const user = draft.user.trim()
  return {
    ...(draft.mode === 'any' ? { any: wishOf(draft.wish) as NonNullable<NewBooking['any']> } : { gpus: draft.gpus }),
    ...(draft.isNow ? {} : { start: momentOf(draft.from) }),
    ...endBody(draft),
    note: draft.note,
    ...(user === '' || user === me ? {} : { user }),
  }
}

function endBody(draft: Draft): { for: number | null } | { end: number | null } {
  return draft.by === 'length' ? { for: lengthOf(draft.length) } : { end: momentOf(draft.until) }
}

/** Only what was changed: a field shows whole minutes, and what nobody touched stays to the second. Null: nothing. */
export function changeBody(draft: Draft, booking: Booking): BookingChange | null {
  const before = draftOf(booking)
  const change: BookingChange = {}
  if (!isSameSet(draft.gpus, before.gpus)) change.gpus = draft.gpus
  if (draft.from !== before.from) change.start = momentOf(draft.from)
  const isEndSame = draft.by === 'until' ? draft.until === before.until : lengthOf(draft.length) === lengthOf(before.length)
  if (!isEndSame) Object.assign(change, endBody(draft))
  else if (draft.by === 'until' && change.start !== undefined) change.end = booking.end
  if (draft.note !== before.note) change.note = draft.note
  if (draft.user.trim() !== '' && draft.user.trim() !== before.user) change.user = draft.user.trim()
  return Object.keys(change).length === 0 ? null : { ...change, version: booking.version }
}

/** A slot that has come, and not the moment at which it was found, begins when it is booked, and is as long as it was. */
export function slotTime({ start, end }: Slot, now: number): { start?: number; for: number } {
  return start <= now ? { for: end - start } : { start, for: end - start }
}

/** The same booking at a time and on GPUs that are free; to the second, which no field could hold. */
export function slotBody(draft: Draft, slot: Slot, me: string, now: number): NewBooking {
  const user = draft.user.trim()
  return { gpus: slot.gpus.map(({ uuid }) => uuid), ...slotTime(slot, now), note: draft.note, ...(user === '' || user === me ? {} : { user }) }
}

/** What was meant to be changed, but at that time and on those GPUs. */
export function slotChange(change: BookingChange, booking: Booking, slot: Slot, now: number): BookingChange {
  const { end: _, gpus: __, ...others } = change
  const uuids = slot.gpus.map(({ uuid }) => uuid)
  const isSame = isSameSet(uuids, booking.gpus.map(({ uuid }) => uuid))
  // Without a start it would stay where it is.
  return { ...others, ...slotTime(slot, now), start: Math.max(slot.start, now), ...(isSame ? {} : { gpus: uuids }) }
}

function isSameSet(some: readonly string[], others: readonly string[]): boolean {
  return some.length === others.length && new Set([...some, ...others]).size === some.length
}
