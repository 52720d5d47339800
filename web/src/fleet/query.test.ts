import { describe, expect, it } from 'vitest'
import type { Host } from '../api/types'
import { busyGpu, GIB, gpu, host } from '../testing/samples'
import shared from '../../../tests/captures/filter-cases.json'
import { explainUnclear, matchesBareHost, matchesGpu, parseQuery, phrasesOf, toggleState } from './query'
import { corrected, suggest } from './suggest'

const lab = host('gpu07', [busyGpu('alice'), gpu({ name: 'NVIDIA H200', display_name: 'Big one', memory_total_bytes: 140.4 * GIB })], {
  display_name: 'Left rack',
  labels: { rack: 'r12' },
})
const [busy, free] = lab.gpus

const found = (text: string): number[] => lab.gpus.flatMap((each, i) => (matchesGpu(parseQuery(text), lab, each) ? [i] : []))

describe('words', () => {
  it.each([
    ['', [0, 1]],
    ['free', [1]],
    ['FREE', [1]],
    ['fre', [1]],
    ['busy', [0]],
    ['free busy', [0, 1]],
    ['idle', []],
    ['alice', [0]],
    ['ALI', [0]],
    ['h200', [1]],
    ['gpu07', [0, 1]],
    ['"left rack"', [0, 1]],
    ['host:left', [0, 1]],
    ['big', [1]],
    ['model:big', [1]],
    ['r12', [0, 1]],
    ['rack=r12', [0, 1]],
    ['free h200', [1]],
    ['busy h200', []],
    ['alice gpu07 a100', [0]],
    ['up', [0, 1]],
    ['down', []],
    ['user:alice', [0]],
    ['user:gpu07', []],
    ['host:gpu07 model:h200', [1]],
    ['-alice', [1]],
    ['-gpu07', []],
    ['"nvidia h200"', [1]],
    ['critical', []],
    ['-free', [0]],
    ['-busy -free', []],
    ['-up', []],
    ['-down -late', [0, 1]],
    ['-critical', [0, 1]],
  ])('%s', (text, expected) => {
    expect(found(text)).toEqual(expected)
  })

  it('finds a GPU that is unwell', () => {
    expect(matchesGpu(parseQuery('critical'), lab, { ...busy!, health: 'critical' })).toBe(true)
  })
})

it('finds a pasted UUID, but no model number that happens to stand in one', () => {
  const named = { ...free!, uuid: 'GPU-4090ab12-77aa-4c11' }
  const fits = (text: string) => matchesGpu(parseQuery(text), lab, named)
  expect([fits('gpu-4090ab12'), fits('4090ab12'), fits('4090')]).toEqual([true, true, false])
})

describe('memory', () => {
  it.each([
    ['>40G', [0, 1]],
    ['>86G', [1]],
    ['> 86G', [1]],
    ['> 86 G', [1]],
    ['>=80GiB', [0, 1]],
    ['>80GiB', [1]],
    ['>40G <90G', [0]],
    ['> 40G < 90G free', []],
    ['=80G', [0]],
    ['>=80G', [0, 1]],
    ['<100g', [0]],
    ['<=80GiB', [0]],
    ['=140GB', [1]],
    ['>0.1T', [1]],
    ['>100000M', [1]],
  ])('%s', (text, expected) => {
    expect(found(text)).toEqual(expected)
  })

  it.each([
    ['>=45G', 46_068],
    ['>=140G', 143_771],
    ['>=80G', 81_559],
    ['=80G', 81_559],
  ])('%s finds a card of %d MiB, as the API does', (text, mib) => {
    expect(matchesGpu(parseQuery(text), lab, { ...free!, memory_total_bytes: mib * 2 ** 20 })).toBe(true)
  })

  it('never fits a GPU whose memory is unknown', () => {
    expect(matchesGpu(parseQuery('<1000G'), lab, { ...free!, memory_total_bytes: null })).toBe(false)
  })
})

it('finds an instance of a divided GPU by its label', () => {
  const fits = (label: string) => matchesGpu(parseQuery('0.5'), lab, { ...free!, label })
  expect([fits('0.5'), fits('0.15'), fits('0')]).toEqual([true, false, false])
})

describe('what cannot be understood', () => {
  it.each(['>lots', '>100', '>', '=', '>40X', '->40G', 'user:', '-', '-host:'])('%s fits nothing and is named', (text) => {
    expect([found(text), parseQuery(`free ${text}`).unclear]).toEqual([[], [text.toLowerCase()]])
  })

  it('is no plain text', () => {
    expect(parseQuery('free h200 >40G user:ann -bob -down').unclear).toEqual([])
  })
})

it('finds a silent host only by what it is, never as free', () => {
  const silent = host('gpu08', [gpu({ availability: 'unknown', last_seen: 'free' })], { status: 'late' })
  expect(matchesGpu(parseQuery('free'), silent, silent.gpus[0]!)).toBe(false)
  expect(matchesGpu(parseQuery('unknown late'), silent, silent.gpus[0]!)).toBe(true)
})

it.each([
  ['', true],
  ['gpu09', true],
  ['up', true],
  ['free', false],
  ['>1G', false],
  ['h200', false],
  ['-down', true],
  ['-up', false],
  ['>lots', false],
])('a host without GPUs fits "%s": %s', (text, expected) => {
  expect(matchesBareHost(parseQuery(text), host('gpu09', []))).toBe(expected)
})

it.each([
  ['', 'free'],
  ['free', ''],
  ['h200', 'free h200'],
  ['h200 FREE >40G', 'h200 >40G'],
  ['-free h200', 'free h200'],
])('toggling free in "%s" gives "%s"', (before, after) => {
  expect(toggleState(before, 'free')).toBe(after)
})

it.each([
  ['>40', '40 what? Write >40G'],
  ['>lots', '“>lots” is not understood'],
])('%s: %s', (token, text) => expect(explainUnclear(token)).toBe(text))

describe('the cases that the command line is tried with, too', () => {
  const hosts = shared.hosts as unknown as Host[]

  it.each(shared.cases)('$query', (expected) => {
    const query = parseQuery(expected.query, phrasesOf(hosts))
    const gpus = hosts.flatMap((each) => each.gpus.filter((gpu) => matchesGpu(query, each, gpu)).map((gpu) => `${each.name}/${gpu.label}`))
    const bare = hosts.filter((each) => each.gpus.length === 0 && matchesBareHost(query, each)).map((each) => each.name)
    expect({ gpus, bare_hosts: bare, unclear: query.unclear }).toEqual({ gpus: expected.gpus, bare_hosts: expected.bare_hosts, unclear: expected.unclear })
  })

  it.each(shared.suggestions)('$query suggests $suggest', ({ query, suggest: near }) => {
    expect(suggest(hosts, query).map((each) => each.near)).toEqual(near)
  })
})

it('puts what was meant in the place of what was written', () => {
  const found = [
    { word: 'usr:ann', near: 'user:ann' },
    { word: 'frree', near: 'free' },
  ]
  expect(corrected(' Frree  usr:ann >40G ', found)).toBe('free  user:ann >40G')
})
