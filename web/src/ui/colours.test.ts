import { beforeEach, expect, test } from 'vitest'
import { forgetUserColours, orderColour, userColour, UNKNOWN_COLOUR } from './colours'

beforeEach(forgetUserColours)

test('a person has the same colour everywhere', () => {
  expect(userColour('alice')).toBe(userColour('alice'))
  expect(userColour('alice')).not.toBe(userColour('bob'))
})

test('names that differ in one letter differ in colour', () => {
  const colours = new Set(['user1', 'user2', 'user3', 'user4', 'user5', 'user6'].map((user) => userColour(user)))
  expect(colours.size).toBeGreaterThan(4)
})

test('who is not known has the colour of the unknown', () => {
  expect(userColour(null)).toBe(UNKNOWN_COLOUR)
})

test('a hostile name is a colour like any other', () => {
  expect(userColour('red; } </style><script>')).toMatch(/^light-dark\(oklch\([\d. ]+\), oklch\([\d. ]+\)\)$/)
})

const PEOPLE = ['ivan', 'ruth', 'aylin', 'lukas', 'mira', 'jonas', 'emil', 'noor', 'hanna', 'greta', 'carol', 'dan', 'zoe', 'kenji', 'amara', 'oskar', 'frieda', 'bob', 'alice', 'leila', 'paul', 'ines', 'tomas', 'vera']

test('no two people on one page look alike, and each keeps the colour there', () => {
  const first = PEOPLE.map((user) => userColour(user))
  expect(new Set(first).size).toBe(24)
  expect([...PEOPLE].reverse().map((user) => userColour(user))).toEqual([...first].reverse())
})

test('who comes first to a hue has it, and another page begins anew', () => {
  const [alone, other] = PEOPLE.flatMap((a) => PEOPLE.filter((b) => a !== b && own(a) === own(b)).map((b) => [a, b] as const))[0]!
  forgetUserColours()
  expect(userColour(alone)).toBe(own(alone))
  expect(userColour(other)).not.toBe(own(other))
  forgetUserColours()
  expect(userColour(other)).toBe(own(alone))
})

test('more people than colours still have a colour each', () => {
  const many = Array.from({ length: 60 }, (_, at) => userColour(`user${at}`))
  expect(many.every((colour) => colour.startsWith('light-dark('))).toBe(true)
})

/** The colour of a person who is alone on a page. */
function own(user: string): string {
  forgetUserColours()
  return userColour(user)
}

test('nobody is red', () => {
  const hues = Array.from({ length: 200 }, (_, at) => Number(/ (\d+)\)/.exec(userColour(`user${at}`))?.[1]))
  expect(hues.filter((hue) => hue > 5 && hue < 45)).toEqual([])
})

test('neighbours in an order differ', () => {
  expect(new Set(Array.from({ length: 24 }, (_, at) => orderColour(at))).size).toBe(24)
})
