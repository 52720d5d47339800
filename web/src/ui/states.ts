/**
 * The states of a GPU as the page shows them: the word, the colour, the shape and the meaning of each; and what is a fault
 * (red) or a warning (amber). Decided here alone.
 */
import type { Availability, HealthLevel, Host } from '../api/types'
import type { Severity } from '../api/events'

export interface StateLook {
  /** As it is written, in search words too. */
  word: string
  /** A CSS colour. It follows the theme, and is grey where everything is old. */
  colour: string
  /** An SVG path in a box of 12 × 12, filled by the even-odd rule: told apart without colour. */
  shape: string
  /** One line, for the help. */
  meaning: string
}

/** In the order in which they are listed and counted. Red is not among them: it stands for faults. */
export const STATES: Readonly<Record<Availability, StateLook>> = {
  free: {
    word: 'free',
    colour: 'var(--free)',
    shape: 'M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10z',
    meaning: 'not in use, not reserved and not allocated',
  },
  busy: {
    word: 'busy',
    colour: 'var(--busy)',
    shape: 'M2.5 1h7a1.5 1.5 0 0 1 1.5 1.5v7a1.5 1.5 0 0 1-1.5 1.5h-7a1.5 1.5 0 0 1-1.5-1.5v-7a1.5 1.5 0 0 1 1.5-1.5z',
    meaning: 'in use and working',
  },
  idle: {
    word: 'idle',
    colour: 'var(--idle)',
    shape: 'M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10zM6 2.4a3.6 3.6 0 1 0 0 7.2z',
    meaning: 'in use, but no work for 10 minutes',
  },
  allocated: {
    word: 'allocated',
    colour: 'var(--allocated)',
    shape: 'M2.5 1h7a1.5 1.5 0 0 1 1.5 1.5v7a1.5 1.5 0 0 1-1.5 1.5h-7a1.5 1.5 0 0 1-1.5-1.5v-7a1.5 1.5 0 0 1 1.5-1.5zM2.8 2.8v6.4h6.4v-6.4z',
    meaning: 'a scheduler has given it to a job, but nothing runs on it',
  },
  reserved: {
    word: 'reserved',
    colour: 'var(--reserved)',
    shape: 'M6 .4L11.6 6L6 11.6L.4 6z',
    meaning: 'not in use, but reserved for now',
  },
  drained: {
    word: 'drained',
    colour: 'var(--drained)',
    shape: 'M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10zM3 5v2h6v-2z',
    meaning: 'not in use, but in maintenance',
  },
  unknown: {
    word: 'unknown',
    colour: 'var(--unknown)',
    shape:
      'M5.1 8.9h1.8v1.8H5.1zM3 4.2C3 2.4 4.3 1.2 6.1 1.2c1.8 0 3 1.1 3 2.6 0 1.2-.6 1.9-1.4 2.5-.6.5-.8.7-.8 1.4v.2H5.2v-.4c0-1.2.5-1.8 1.3-2.4.6-.5.8-.7.8-1.3 0-.6-.5-1-1.2-1-.8 0-1.3.5-1.3 1.4z',
    meaning: 'not reporting, missing or unreadable; never counted as free',
  },
}

/** How bad something is, from the least on. Critical is red, a warning amber: `var(--critical)`, `var(--warning)`. */
export const LEVELS = ['ok', 'warning', 'critical'] as const
export type Level = (typeof LEVELS)[number]

/** A GPU that is lost is critical. One of which nothing is known is grey, and its host says why. */
export const gpuLevel = (health: HealthLevel): Level => (health === 'unknown' ? 'ok' : health)
const STATUS_LEVELS: Record<Host['status'], Level> = { up: 'ok', late: 'warning', never_seen: 'warning', down: 'critical' }
export const statusLevel = (status: Host['status']): Level => STATUS_LEVELS[status]
export const alertLevel = (severity: Severity): Level => (severity === 'info' ? 'ok' : severity)
export const worstLevel = (levels: readonly Level[]): Level => LEVELS[Math.max(0, ...levels.map((level) => LEVELS.indexOf(level)))]!

export const AVAILABILITIES = Object.keys(STATES) as readonly Availability[]

/** In a stacked chart, from the axis up: work at the bottom, and on it what is taken without work. */
export const STACKED: readonly Availability[] = ['busy', 'idle', 'allocated', 'reserved', 'drained', 'free', 'unknown']

/** Nobody is on such a GPU. */
export function isUnused(state: Availability): boolean {
  return state === 'free' || state === 'allocated' || state === 'reserved' || state === 'drained'
}

/** Whether a state is counted where none is in it: many sites never have allocated or drained GPUs. */
export function isCounted(state: Availability, count: number): boolean {
  return count > 0 || (state !== 'allocated' && state !== 'drained')
}

/** None of each. */
export function noCounts(): Record<Availability, number> {
  return { free: 0, busy: 0, idle: 0, allocated: 0, reserved: 0, drained: 0, unknown: 0 }
}

export function isAvailability(word: string): word is Availability {
  return Object.hasOwn(STATES, word)
}
