/** Where somebody is logged in, in words. */
import type { Session } from '../api/types'
import { moment, plain } from '../ui/format'

export interface SessionLine {
  isThis: boolean
  where: string
  when: string
}

const SYSTEMS: readonly [RegExp, string][] = [
  [/iPhone|iPad/, 'iOS'],
  [/Android/, 'Android'],
  [/Windows/, 'Windows'],
  [/Mac OS X|Macintosh/, 'macOS'],
  [/CrOS/, 'ChromeOS'],
  [/Linux|X11/, 'Linux'],
]
// Most browsers name others as well: the first that fits is the one.
const BROWSERS: readonly [RegExp, string][] = [
  [/Edg\w*\//, 'Edge'],
  [/OPR\//, 'Opera'],
  [/Firefox\/|FxiOS\//, 'Firefox'],
  [/Chrom(e|ium)\/|HeadlessChrome|CriOS\//, 'Chrome'],
  [/Safari\//, 'Safari'],
]

/** `Firefox on Linux`; the first word of what is neither known. */
export function browserName(agent: string): string {
  const find = (known: readonly [RegExp, string][]): string | undefined => known.find(([pattern]) => pattern.test(agent))?.[1]
  const system = find(SYSTEMS)
  const browser = find(BROWSERS) ?? (plain(agent).split(/[\s/]/)[0]?.slice(0, 40) || 'unknown browser')
  return system === undefined ? browser : `${browser} on ${system}`
}

export function sessionLine(session: Session, now: number): SessionLine {
  return {
    isThis: session.is_this,
    where: `${browserName(session.user_agent)}${session.address ? `, ${plain(session.address)}` : ''}`,
    when: `since ${moment(session.created_at, now)}, last used ${moment(session.seen_at, now)}`,
  }
}
